//! trust: CA folders, system roots, the insecure switch, proxies.
