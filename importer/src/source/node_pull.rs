//! the node-pull protocol: the kubelet pulled the image, a server beside us offers the disk.
