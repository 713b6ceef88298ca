//! The launcher's first process: PID 1 of a pod, or a child of virt-node. It starts the worker, reaps what is orphaned
//! (QEMU is, as soon as it runs), hands on the request to end, and starts the worker again when that is gone. No libvirt,
//! no thread, no policy, hardly any memory.
//!
//! ```text
//! root ──exec──► VM's user, no-new-privs ──► worker (libvirt) ──► QEMU
//!                     │   ▲ SIGCHLD           │ ends with 0: the record has the guest's end
//!                     └───┴───── again ◄──────┘ ends otherwise: the guest goes on, the next worker takes over
//! ```
//!
//! The socket is made here, and each worker gets it ([`crate::handover`]): callers wait in it while there is no worker.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use api::launcher::Exit;
use api::names::QEMU_ID;
use rustix::process::{
    Gid, Pid, Signal as Sent, Uid, WaitOptions, geteuid, kill_process, set_child_subreaper, wait,
};
use rustix::thread::{
    CapabilitySet, remove_capability_from_bounding_set, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use crate::environment::{environment, own};
use crate::error::{Error, Kind};
use crate::folder::Folder;
use crate::handover::Handover;
use crate::{capabilities, plan};
use guest::signals::{self as sys, Signal};

/// Workers that fail one after the other before it is given up, where no guest depends on them.
const FAILURES_MAX: usize = 6;

fn failed(what: &str) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::with(Kind::System, what.to_owned(), error)
}

/// Runs a guest's launcher to the guest's end. `say` receives messages for the user.
pub(crate) fn run(
    path: &Path,
    cache: Option<&Path>,
    user: u32,
    groups: &[u32],
    say: impl Fn(&str),
) -> Result<Exit, Error> {
    let folder = Folder::new(path)?;
    drop_privileges(&folder, user, groups)?;
    // It was started by the name of its file, or by a link in /proc.
    _ = rustix::thread::set_name(c"virt-launcher");
    if let Some(exit) = folder.exit()? {
        return Ok(exit);
    }
    folder.prepare()?;
    let fetched = cache.map_or(Ok(false), |cache| capabilities::fetch(cache, &folder))?;
    // In a pod no cache is named: the node's agent puts the files into the folder before the guest starts.
    if cache.is_some() && !fetched && !capabilities::known(&folder) {
        say(
            "libvirt has no cached capabilities of this QEMU and probes them for this guest, which takes seconds",
        );
    }
    sys::block_signals().map_err(failed("signals cannot be blocked"))?;
    set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(io::Error::from)
        .map_err(failed("cannot become the reaper of orphaned processes"))?;
    let socket = listen(&folder)?;
    let ended = supervise(&folder, &socket, &say);
    // A missing socket cannot be removed, and no other process makes it.
    drop(std::fs::remove_file(folder.socket()));
    ended
}

/// Prepares the directory of a launcher pod: the instance's uid, and QEMU's log at the path that tools expect.
///
/// # Errors
/// The pod gives root, or the directory cannot be written.
pub(crate) fn prepare_pod(path: &Path, uid: Option<&str>) -> Result<(), Error> {
    if geteuid().is_root() {
        let text = format!("a launcher pod does not run as root: set runAsUser to {QEMU_ID}");
        return Err(Error::new(Kind::Usage, text));
    }
    Folder::new(path)?.prepare_pod(uid)
}

/// Makes this process the VM's user, with these groups besides its own, and takes from it what a program could gain by
/// being executed. Does not return when that changes what a process keeps: it executes this program again.
fn drop_privileges(folder: &Folder, user: u32, groups: &[u32]) -> Result<(), Error> {
    let refused = failed("privileges cannot be dropped");
    if !geteuid().is_root() {
        return set_no_new_privs(true).map_err(io::Error::from).map_err(refused);
    }
    if user == 0 || user == u32::MAX {
        return Err(Error::new(
            Kind::Usage,
            format!("--user {user}: VMs run neither as root nor as {}; give another user", u32::MAX),
        ));
    }
    folder.give_away(user)?;
    let kept = CapabilitySet::NET_BIND_SERVICE;
    for capability in CapabilitySet::all().difference(kept).iter() {
        // One that the kernel does not know is not there either.
        match remove_capability_from_bounding_set(capability) {
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(refused(error.into())),
        }
    }
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    let changed = set_thread_groups(&groups)
        .and_then(|()| set_thread_res_gid(gid, gid, gid))
        .and_then(|()| set_thread_res_uid(uid, uid, uid));
    // This is the only thread, and exec keeps what it is.
    changed.map_err(io::Error::from).map_err(failed("cannot become the VM's user"))?;
    let error = own().args(std::env::args_os().skip(1)).exec();
    Err(Error::with(Kind::System, "cannot start again as the VM's user", error))
}

fn listen(folder: &Folder) -> Result<UnixListener, Error> {
    let path = folder.socket();
    let refused = |error| Error::with(Kind::System, format!("cannot listen on {}", path.display()), error);
    // Of a launcher that is gone: two at once stop each other at libvirt's lock.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(refused(error)),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&path).map_err(refused)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(refused)?;
    Ok(listener)
}

fn start(folder: &Folder, socket: &UnixListener, handover: &Handover, stop: bool) -> Result<Pid, Error> {
    let refused = || failed("the worker cannot be started");
    let mut command = own();
    command.arg("worker").arg(folder.path());
    if stop {
        command.arg("--stop");
    }
    environment(&mut command, folder);
    let input = handover.offer(socket).map_err(refused())?;
    let worker = command.stdin(Stdio::from(input)).spawn().map_err(refused())?;
    i32::try_from(worker.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| refused()(io::ErrorKind::InvalidData.into()))
}

/// The worker, while there is one.
struct Worker {
    id: Pid,
    since: Instant,
}

fn supervise(folder: &Folder, socket: &UnixListener, say: &impl Fn(&str)) -> Result<Exit, Error> {
    let handover = Handover::new().map_err(failed("a pair of sockets for workers cannot be made"))?;
    let (mut stop, mut failures) = (false, 0);
    loop {
        let worker = Worker { id: start(folder, socket, &handover, stop)?, since: Instant::now() };
        // From here on it sleeps, most of the time. On failure a little more memory stays in use.
        drop(guest::memory::give_back());
        let status = watch(&worker, &mut stop)?;
        if let Some(exit) = folder.exit()? {
            return Ok(exit);
        }
        if stop && !folder.started()? && !has_children() {
            return Err(Error::new(Kind::System, "asked to end before a guest was launched"));
        }
        let (delay, count) = plan::delay(worker.since.elapsed(), failures);
        failures = count;
        say(&format!("the worker ended ({status}); another one takes over in {} ms", delay.as_millis()));
        if failures > FAILURES_MAX && !has_children() {
            return Err(Error::new(
                Kind::System,
                format!(
                    "{failures} workers in a row failed before a guest was launched; the log above has the reason"
                ),
            ));
        }
        pause(delay, &mut stop)?;
    }
}

/// Waits for the worker's end, hands on what it is asked, reaps everything else. Answers how the worker ended.
fn watch(worker: &Worker, stop: &mut bool) -> Result<String, Error> {
    loop {
        match sys::next_signal(None).map_err(failed("signals cannot be waited for"))? {
            Some(Signal::Stop) => {
                *stop = true;
                // If it has just ended, the next worker gets the request when it starts.
                _ = kill_process(worker.id, Sent::TERM);
            }
            Some(Signal::Child) => {
                if let Some(status) = reap(Some(worker.id)) {
                    return Ok(status);
                }
            }
            None => {}
        }
    }
}

/// Reaps ended children; returns the worker's status, if it was among them.
fn reap(worker: Option<Pid>) -> Option<String> {
    let mut ended = None;
    while let Ok(Some((child, status))) = wait(WaitOptions::NOHANG) {
        if Some(child) == worker {
            ended = Some(match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => format!("exit code {code}"),
                (None, Some(signal)) => format!("signal {signal}"),
                (None, None) => "unknown".to_owned(),
            });
        }
    }
    ended
}

/// Whether anything of ours still runs: QEMU, since the worker is gone.
fn has_children() -> bool {
    !matches!(wait(WaitOptions::NOHANG), Err(rustix::io::Errno::CHILD))
}

/// Waits that long, and reaps children in the meantime.
fn pause(time: Duration, stop: &mut bool) -> Result<(), Error> {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        match sys::next_signal(Some(left)).map_err(failed("signals cannot be waited for"))? {
            Some(Signal::Stop) => *stop = true,
            Some(Signal::Child) => drop(reap(None)),
            None => {}
        }
    }
}
