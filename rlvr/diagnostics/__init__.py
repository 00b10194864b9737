"""Measurements that train nothing; they write data, which `analysis` draws."""
