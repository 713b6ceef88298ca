//! A launcher and its guest, from the launch document to the record of the end.

use std::fs;
use std::io::Write;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use api::launch::{Launch, Media, OnReboot};
use api::launcher::{Answer, Cause, Event, PauseReason, RefusedKind, Request, State};
use api::names::QEMU_ID;
use guest::CallError;
use rustix::process::Signal;

use crate::support::running::{
    FLOODS, HALTS, Launcher, TIMEOUT, TRIPLE_FAULT, eventually, kill, next_status,
};

fn refused(answer: Result<Answer, CallError>) -> (RefusedKind, String) {
    match answer {
        Err(CallError::Refused(kind, said)) => (kind, said),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_guest_starts_pauses_goes_on_is_reset_and_is_killed() {
    let mut launcher = Launcher::new();
    assert_eq!(launcher.status().state, State::Waiting);
    assert_eq!(refused(launcher.ask(Request::Pause)).0, RefusedKind::State, "there is no guest");
    let document = launcher.document(HALTS);
    let mut watcher = launcher.client();
    watcher.call(Request::Watch).unwrap();
    launcher.launch(&document);
    launcher.until_serial("K");
    let status = launcher.status();
    assert_eq!((status.state, status.uid.as_ref()), (State::Running, Some(&document.uid)));

    launcher.ask(Request::Pause).unwrap();
    let status = launcher.status();
    assert_eq!((status.state, status.reason), (State::Paused, Some(PauseReason::Asked)));
    launcher.ask(Request::Unpause).unwrap();
    assert_eq!(launcher.status().state, State::Running);

    launcher.ask(Request::Reset).unwrap();
    launcher.until_serial("KK");

    let Answer::Screenshot { mime, content } = launcher.ask(Request::Screenshot).unwrap() else {
        panic!("a picture")
    };
    assert!(mime.starts_with("image/") && content.len() > 100, "{mime}");
    let (kind, said) = refused(
        launcher.ask(Request::Agent { command: "{\"execute\":\"guest-ping\"}".into(), timeout_seconds: 1 }),
    );
    assert_eq!(kind, RefusedKind::Failed, "{said}");

    launcher.ask(Request::Kill).unwrap();
    let exit = launcher.ends(Cause::Killed);
    assert_eq!(exit.uid, document.uid);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(exit.time <= now && exit.time + 60 > now, "{exit:?}");
    // Every event was reported, the end last.
    let mut seen = Vec::new();
    let mut rebooted = 0;
    while let Some(event) = watcher.event(TIMEOUT).ok().flatten() {
        match event {
            Event::Status(status) => seen.push(status.state),
            Event::Rebooted => rebooted += 1,
            Event::Watchdog | Event::IoError { .. } | Event::Detached { .. } | Event::Agent { .. } => {}
        }
    }
    assert!(rebooted > 0, "{seen:?}");
    assert_eq!(seen.last(), Some(&State::Ended), "{seen:?}");
    assert!(seen.contains(&State::Paused) && seen.contains(&State::Running), "{seen:?}");
}

/// A loop device on a file.
struct Loop(String);

impl Loop {
    fn on(file: &Path) -> Self {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        Self(String::from_utf8(made.stdout).unwrap().trim().to_owned())
    }

    /// A launch document for a disk on the device, through a node of the launcher's own, as pods have them.
    fn document(&self, launcher: &Launcher) -> Launch {
        let node = launcher.folder().join("device");
        if !node.exists() {
            let number = rustix::fs::stat(self.0.as_str()).unwrap().st_rdev;
            let (kind, mode) = (rustix::fs::FileType::BlockDevice, rustix::fs::Mode::from_raw_mode(0o600));
            rustix::fs::mknodat(rustix::fs::CWD, &node, kind, mode, number).unwrap();
            chown(&node, Some(QEMU_ID), Some(QEMU_ID)).unwrap();
        }
        let mut document = launcher.document(HALTS);
        let Media::Storage(storage) = &mut document.disks[0].media else { panic!("a disk") };
        (storage.path, storage.block) = (node.to_str().unwrap().to_owned(), true);
        document
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        drop(Command::new("losetup").args(["-d", &self.0]).status());
    }
}

#[test]
fn a_block_device_is_one_guests_by_whatever_node() {
    let place = Launcher::new();
    drop(place.document(HALTS));
    let device = Loop::on(&place.folder().join("disk.img"));
    let (mut first, mut second, third) = (Launcher::new(), Launcher::new(), Launcher::new());
    first.launch(&device.document(&first));
    first.until_serial("K");
    let is_refused = |launcher: &Launcher| {
        let (_, said) = refused(launcher.client().launch(&device.document(launcher)));
        assert!(said.contains("device is in use: another guest writes it"), "{said}");
        assert_eq!(launcher.status().state, State::Waiting);
    };
    is_refused(&second);
    for _ in 0..3 {
        kill(first.worker(), Signal::KILL);
        first.until(State::Running);
        is_refused(&second);
    }
    // A shareable disk is not claimed.
    let mut shared = device.document(&third);
    shared.disks[0].shareable = true;
    third.launch(&shared);

    first.ask(Request::Kill).unwrap();
    first.ends(Cause::Killed);
    second.launch(&device.document(&second));
    second.until_serial("K");
    second.ask(Request::Kill).unwrap();
    second.ends(Cause::Killed);
}

#[test]
fn memory_is_dumped_into_a_file_and_the_guest_runs_on() {
    let mut launcher = Launcher::new();
    let document = launcher.document(HALTS);
    let request = |path: &Path| Request::Dump { path: path.to_str().unwrap().to_owned() };
    let file = launcher.folder().join("memory");
    assert_eq!(refused(launcher.ask(request(&file))).0, RefusedKind::State, "there is no guest");
    launcher.launch(&document);
    launcher.until_serial("K");
    assert_eq!(refused(launcher.ask(request(Path::new("memory")))).0, RefusedKind::Invalid);
    fs::write(&file, "").unwrap();
    chown(&file, Some(QEMU_ID), Some(QEMU_ID)).unwrap();
    let began = launcher.ask(request(&file)).unwrap();
    assert!(matches!(began, Answer::Status(status) if status.dump.is_some()));
    let dump = eventually("the end of the dump", || launcher.status().dump.filter(|dump| dump.ended));
    assert_eq!(dump.error, None);
    let mut head = [0; 4];
    std::io::Read::read_exact(&mut fs::File::open(&file).unwrap(), &mut head).unwrap();
    assert_eq!(&head, b"\x7fELF");
    assert!(fs::metadata(&file).unwrap().len() >= document.memory.guest);
    assert_eq!(launcher.status().state, State::Running);
    // Nothing is written where the guest's user may not.
    launcher.ask(request(Path::new("/proc/dump"))).unwrap();
    let dump = eventually("the end of the dump", || {
        launcher.status().dump.filter(|dump| dump.ended && dump.path == "/proc/dump")
    });
    assert!(dump.error.is_some());
    assert_eq!(launcher.status().state, State::Running);
    launcher.ask(Request::Kill).unwrap();
    launcher.ends(Cause::Killed);
}

#[test]
fn a_launch_is_idempotent_and_one_launcher_runs_one_guest() {
    let launcher = Launcher::new();
    let document = launcher.document(HALTS);
    launcher.launch(&document);
    let qemu = launcher.qemu();
    assert!(qemu.is_some());
    let again = launcher.client().launch(&document).unwrap();
    let Answer::Launched { new: false, layout, .. } = again else { panic!("{again:?}") };
    assert!(layout.slots.contains_key("balloon0"), "{layout:?}");
    assert_eq!(launcher.qemu(), qemu);
    let mut other = document.clone();
    other.uid = "00000000-0000-4000-8000-0000000000ff".to_owned();
    let (kind, said) = refused(launcher.client().launch(&other));
    assert_eq!((kind, said.as_str()), (RefusedKind::State, "this launcher runs another guest already"));
}

#[test]
fn documents_that_cannot_be_are_refused_and_another_may_follow() {
    let launcher = Launcher::new();
    let good = launcher.document(HALTS);
    let raw = |version: u32| {
        let mut json: serde_json::Value = serde_json::from_slice(&good.write().unwrap()).unwrap();
        json["version"] = version.into();
        Request::Launch(serde_json::value::to_raw_value(&json).unwrap())
    };
    let (kind, said) = refused(launcher.ask(raw(7)));
    assert_eq!(kind, RefusedKind::Invalid);
    assert!(said.contains("launch document of version 7; this program reads version 1"), "{said}");
    let mut elsewhere = good.clone();
    elsewhere.folder = "/run/elsewhere".to_owned();
    let (kind, said) = refused(launcher.client().launch(&elsewhere));
    assert!(kind == RefusedKind::Invalid && said.contains("/run/elsewhere is another one"), "{said}");
    // libvirt's refusal is reported in its words, and no guest is left.
    let mut missing = good.clone();
    let Media::Storage(storage) = &mut missing.disks[0].media else { panic!("a disk") };
    storage.path = "/nonexistent/disk.img".to_owned();
    let (kind, said) = refused(launcher.client().launch(&missing));
    assert!(kind == RefusedKind::Failed && said.contains("/nonexistent/disk.img"), "{said}");
    assert_eq!((launcher.status().state, launcher.qemu()), (State::Waiting, None));
    launcher.launch(&good);
    launcher.until_serial("K");
}

#[test]
fn a_guest_that_is_made_paused_waits() {
    let launcher = Launcher::new();
    let mut document = launcher.document(HALTS);
    document.paused = true;
    launcher.launch(&document);
    assert_eq!(launcher.status().state, State::Paused);
    sleep(Duration::from_millis(300));
    assert_eq!(launcher.serial(), "");
    launcher.ask(Request::Unpause).unwrap();
    // Its boot menu is shown for ten seconds.
    launcher.until_serial("K");
}

#[test]
fn a_guest_that_does_not_obey_is_killed_when_its_grace_is_over() {
    for by_signal in [true, false] {
        let mut launcher = Launcher::new();
        let mut document = launcher.document(HALTS);
        document.grace_seconds = if by_signal { 2 } else { 3600 };
        launcher.launch(&document);
        launcher.until_serial("K");
        let mut watcher = launcher.client();
        watcher.call(Request::Watch).unwrap();
        let begun = Instant::now();
        if by_signal {
            kill(launcher.outer(), Signal::TERM);
        } else {
            launcher.ask(Request::Shutdown { grace_seconds: None }).unwrap();
            launcher.until(State::Stopping);
            launcher.ask(Request::Shutdown { grace_seconds: Some(2) }).unwrap();
            launcher.ask(Request::Shutdown { grace_seconds: Some(3600) }).unwrap();
        }
        launcher.ends(Cause::Killed);
        assert!(begun.elapsed() >= Duration::from_secs(2), "not before: {:?}", begun.elapsed());
        let told = loop {
            let status = next_status(&mut watcher);
            if status.state == State::Ended {
                break status.exit.unwrap();
            }
        };
        assert_eq!(told.cause, Cause::Killed);
    }
}

#[test]
fn a_triple_fault_is_the_end_where_a_reboot_is_and_a_reboot_elsewhere() {
    let mut launcher = Launcher::new();
    let mut document = launcher.document(TRIPLE_FAULT);
    document.on_reboot = OnReboot::Destroy;
    launcher.launch(&document);
    launcher.ends(Cause::Rebooted);
    assert_eq!(launcher.serial(), "F");

    let launcher = Launcher::new();
    launcher.launch(&launcher.document(TRIPLE_FAULT));
    launcher.until_serial("FF");
    assert_eq!(launcher.status().state, State::Running);
}

#[test]
fn a_qemu_that_is_killed_is_a_crash() {
    let mut launcher = Launcher::new();
    launcher.launch(&launcher.document(HALTS));
    launcher.until_serial("K");
    kill(launcher.qemu().unwrap(), Signal::KILL);
    launcher.ends(Cause::Crashed);
}

/// Debian's kernel, and a first process that obeys the power button, with time enough for it.
fn linux() -> Launcher {
    let launcher = Launcher::new();
    let mut document = launcher.document(&[]);
    linux_disk(launcher.folder());
    document.memory.guest = 256 << 20;
    document.memory.max_guest = 256 << 20;
    document.grace_seconds = 600;
    launcher.launch(&document);
    launcher.until_serial("guest: up");
    launcher
}

fn linux_disk(folder: &Path) {
    let init = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/support/button_init");
    let work = tempfile::tempdir().unwrap();
    let tree = guests::Tree::new(work.path(), &[], "sh mount modprobe dd poweroff sleep", &init);
    tree.modules(&["button", "evdev"]);
    let disk = folder.join("disk.img");
    tree.pack().disk(&disk);
    chown(&disk, Some(QEMU_ID), Some(QEMU_ID)).unwrap();
}

#[test]
fn endless_output_of_a_guest_is_bounded() {
    let launcher = Launcher::new();
    launcher.launch(&launcher.document(FLOODS));
    launcher.until_serial("xxxx");
    let log = launcher.folder().join("serial0.log");
    // As much as it would have written in minutes.
    let mut file = fs::File::options().append(true).open(&log).unwrap();
    file.write_all(&vec![b'y'; 5 << 20]).unwrap();
    eventually("a short log", || (fs::metadata(&log).unwrap().len() < 4 << 20).then_some(()));
    assert_eq!(fs::metadata(launcher.folder().join("serial0.log.before")).unwrap().len(), 1 << 20);
    // It goes on, from the start of what is a file without holes.
    launcher.until_serial("xxxx");
    assert!(fs::read(&log).unwrap().iter().all(|byte| *byte == b'x'));
}

#[test]
fn linux_reboots_when_it_is_asked_and_is_the_same_guest() {
    let mut launcher = linux();
    let qemu = launcher.qemu();
    let mut watcher = launcher.client();
    watcher.call(Request::Watch).unwrap();
    // It has no agent: by its power button.
    launcher.ask(Request::SoftReboot).unwrap();
    eventually("another boot", || (launcher.serial().matches("guest: up").count() == 2).then_some(()));
    assert!(launcher.serial().contains("guest: power button"));
    eventually("a word of it", || (watcher.event(TIMEOUT).unwrap() == Some(Event::Rebooted)).then_some(()));
    assert_eq!((launcher.status().state, launcher.qemu()), (State::Running, qemu));
    // The next time it is meant.
    kill(launcher.outer(), Signal::TERM);
    launcher.ends(Cause::Shutdown);
}

#[test]
fn linux_obeys_its_power_button_inside_the_grace() {
    let mut launcher = linux();
    // One that stands still hears it too.
    launcher.ask(Request::Pause).unwrap();
    kill(launcher.outer(), Signal::TERM);
    launcher.ends(Cause::Shutdown);
    assert!(launcher.serial().contains("guest: power button"));
    let log = fs::read_to_string(launcher.folder().join("lv/log/qemu/default_minimal.log")).unwrap();
    assert!(log.contains("shutting down, reason=shutdown"), "{log}");
}
