//! A server's Unix socket, and a gRPC client of one. The socket appears with its mode and replaces the one of an earlier
//! process; at exit it is removed unless another process has replaced it. Not here: the served methods.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::Router;
use tonic::transport::{Channel, Endpoint};

/// A socket that is listened on.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    name: Name,
}

/// The name of a socket, and which one it was.
#[derive(Debug)]
struct Name {
    path: PathBuf,
    inode: Option<u64>,
}

impl Socket {
    /// Listens on a socket that only its owner may use.
    ///
    /// # Errors
    /// When another server answers there, or the socket cannot be created.
    pub(crate) async fn listen(path: &Path) -> io::Result<Self> {
        let taken = match UnixStream::connect(path).await {
            Ok(_) => true,
            // So many callers wait that there is no place for another one.
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        if taken {
            let what =
                format!("another process answers on {}: stop it, or name another socket", path.display());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
        }
        // The kubelet takes no notice of names that begin with a dot: it sees the socket when it is ready.
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(path.file_name().unwrap_or_default());
        let fresh = path.with_file_name(hidden);
        match std::fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&fresh)?;
        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600))?;
        std::fs::rename(&fresh, path)?;
        let name = Name { path: path.to_path_buf(), inode: inode(path) };
        Ok(Self { listener, name })
    }

    /// Whether what is there is still what we listen on.
    pub(crate) fn is_ours(&self) -> bool {
        self.name.is_ours()
    }

    /// The next caller.
    pub(crate) async fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _) = self.listener.accept().await?;
        Ok(stream)
    }

    /// Listens no more.
    pub(crate) fn close(self) {
        self.name.remove();
    }

    /// Serves gRPC until `stop`; calls that run by then come to their end.
    pub(crate) async fn serve(
        self,
        router: Router,
        stop: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        let Self { listener, name } = self;
        let served = router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop).await;
        name.remove();
        served
    }
}

impl Name {
    fn remove(&self) {
        if self.is_ours() {
            drop(std::fs::remove_file(&self.path));
        }
    }

    fn is_ours(&self) -> bool {
        self.inode.is_some() && inode(&self.path) == self.inode
    }
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|metadata| metadata.ino())
}

/// A client's connection to the socket at `path`; no call on it takes longer than `patience`.
pub(crate) async fn connect(path: PathBuf, patience: Duration) -> Result<Channel, tonic::transport::Error> {
    let connect = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The address is never used, the connector knows where to go.
    Endpoint::from_static("http://localhost")
        .connect_timeout(patience)
        .timeout(patience)
        .connect_with_connector(connect)
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_with_a_live_server_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("csi.sock");
        let theirs = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let taken = async || Socket::listen(&path).await.unwrap_err().kind();
        assert_eq!(taken().await, io::ErrorKind::AddrInUse);
        // The listener accepts no connection: one more fills its backlog.
        rustix::net::listen(&theirs, 0).unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = UnixStream::connect(&path).await {
            waiting.push(stream);
        }
        assert_eq!(taken().await, io::ErrorKind::AddrInUse);
        drop(theirs);
        assert!(Socket::listen(&path).await.unwrap().is_ours());
    }
}
