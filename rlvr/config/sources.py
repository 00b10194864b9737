"""Hydra's source of config files, which parses each file once per process.

For every compose Hydra reads the files of all chosen options anew, with YAML's parser in Python: a third of its time.
"""

import pickle
from pathlib import Path

from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult

# By file, and when it was written, its size and its inode. Pickled: Hydra changes what it loads.
_parsed: dict[tuple[Path, int, int, int], bytes] = {}


class FileConfigSource(file_config_source.FileConfigSource):  # of the same name: Hydra's registry accepts no other
    """`file://`: as Hydra's own, with parsed files kept as long as they are not written anew."""

    def load_config(self, config_path: str) -> ConfigResult:
        file = Path(self.path, self._normalize_file_name(config_path))
        try:
            status = file.stat()
        except OSError:
            return super().load_config(config_path)  # which says what is wrong with it
        version = (file.resolve(), status.st_mtime_ns, status.st_size, status.st_ino)
        if version not in _parsed:
            _parsed[version] = pickle.dumps(super().load_config(config_path))
        return pickle.loads(_parsed[version])  # noqa: S301 - bytes that were pickled above


def register() -> None:
    """Have Hydra use this source. May be called repeatedly."""
    Plugins.instance()  # registers Hydra's own at its first use
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource
