//! The launcher of a pod: its socket in the emptyDir `private`, and the process behind it.
//!
//! The pod's processes own that directory, so a socket there proves nothing: the process that listens has to be the guests'
//! user and in the pod's cgroup, which only the kubelet puts processes into.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use api::launcher::SOCKET;
use api::names::QEMU_ID;
use rustix::net::sockopt::socket_peercred;

use super::PodDirectory;
use super::process::Process;
use crate::error::{Error, Kind, Result};

/// The emptyDir of the launcher's own files.
pub(crate) const PRIVATE: &str = "private";
/// How long a launcher may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to the verified process of a launcher.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The connection.
    pub(crate) stream: UnixStream,
    /// The launcher's first process.
    pub(crate) process: Process,
}

/// Connects to the launcher of a pod.
///
/// # Errors
/// [`Kind::Launcher`]: none listens there yet or any more; [`Kind::Untrusted`]: something else does.
pub(crate) fn connect(pod: &PodDirectory) -> Result<Connection> {
    let stream = socket(pod, SOCKET)?;
    let process = peer(&stream, pod)?;
    Ok(Connection { stream, process })
}

/// Connects to another socket of the launcher's directory, such as a guest's console. QEMU listens there, a process of the
/// same pod.
///
/// # Errors
/// As [`connect`].
pub(crate) fn connect_to(pod: &PodDirectory, name: &str) -> Result<UnixStream> {
    let stream = socket(pod, name)?;
    peer(&stream, pod)?;
    Ok(stream)
}

fn socket(pod: &PodDirectory, name: &str) -> Result<UnixStream> {
    let private = pod.need_empty_dir(PRIVATE)?;
    private.connect(name, CONNECT_TIMEOUT).map_err(|error| {
        use std::io::ErrorKind::{ConnectionRefused, NotFound, WouldBlock};
        let absent = matches!(error.kind(), NotFound | ConnectionRefused | WouldBlock);
        let kind = if absent { Kind::Launcher } else { Error::from(error).kind() };
        Error::new(kind, format!("cannot connect to {name} of pod {}", pod.uid()))
    })
}

/// The process at the other end, checked.
fn peer(stream: &UnixStream, pod: &PodDirectory) -> Result<Process> {
    let peer = socket_peercred(stream)
        .map_err(|error| Error::system("cannot see which process listens on the launcher's socket", error))?;
    let (number, user) = (peer.pid.as_raw_nonzero().get(), peer.uid.as_raw());
    if user != QEMU_ID {
        let text = format!("process {number}, of user {user}, listens on the socket of pod {}", pod.uid());
        return Err(Error::new(Kind::Untrusted, text));
    }
    let gone = || Error::new(Kind::Launcher, format!("the launcher of pod {} has ended", pod.uid()));
    let process = Process::open(number)?.ok_or_else(gone)?;
    // The number may be another process's by now: that one is not in the pod.
    match process.is_in_pod(pod.uid()) {
        Ok(true) => Ok(process),
        Ok(false) => {
            let text =
                format!("process {number} listens on the socket of pod {} and is not in it", pod.uid());
            Err(Error::new(Kind::Untrusted, text))
        }
        Err(_) => Err(gone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    const UID: &str = "0a1b2c3d-0000-4000-8000-00000000000f";

    fn pod(kubelet: &std::path::Path) -> (PodDirectory, std::path::PathBuf) {
        let private = kubelet.join("pods").join(UID).join("volumes/kubernetes.io~empty-dir/private");
        std::fs::create_dir_all(&private).unwrap();
        (PodDirectory::open(kubelet, UID).unwrap().unwrap(), private)
    }

    #[test]
    fn a_socket_of_another_user_or_pod_is_refused() {
        let kubelet = tempfile::tempdir().unwrap();
        let (pod, private) = pod(kubelet.path());
        assert_eq!(connect(&pod).unwrap_err().kind(), Kind::Launcher);
        let listener = UnixListener::bind(private.join(SOCKET)).unwrap();
        // This process listens: it is neither the guests' user nor in the pod.
        assert_eq!(connect(&pod).unwrap_err().kind(), Kind::Untrusted);
        drop(listener);
        // A program that another test starts has the socket, too, until it is executed.
        let begun = std::time::Instant::now();
        while connect(&pod).unwrap_err().kind() != Kind::Launcher {
            assert!(begun.elapsed().as_secs() < 10);
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_link_in_place_of_the_socket_or_its_directory_is_refused() {
        let kubelet = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let _listener = UnixListener::bind(elsewhere.path().join(SOCKET)).unwrap();
        let (pod, private) = pod(kubelet.path());
        symlink(elsewhere.path().join(SOCKET), private.join(SOCKET)).unwrap();
        assert_eq!(connect(&pod).unwrap_err().kind(), Kind::Untrusted);
        std::fs::remove_dir_all(&private).unwrap();
        symlink(elsewhere.path(), &private).unwrap();
        assert_eq!(connect(&pod).unwrap_err().kind(), Kind::Untrusted);
    }

    #[test]
    fn uids_that_lead_out_of_the_kubelets_directory_are_refused() {
        let kubelet = tempfile::tempdir().unwrap();
        for uid in ["", "..", "../..", "a/b"] {
            assert_eq!(PodDirectory::open(kubelet.path(), uid).unwrap_err().kind(), Kind::Content, "{uid:?}");
        }
        assert!(PodDirectory::open(kubelet.path(), "absent").unwrap().is_none());
    }
}
