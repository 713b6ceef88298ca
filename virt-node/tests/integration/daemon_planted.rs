//! Links, FIFOs, devices and hard links that a VM's user, another VM's, an importer's or an archive puts into every
//! directory that it may write to, at each step of a VM's and a volume's life: no file outside changes, the daemon answers
//! within a second, and ends and starts as ever.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;

use crate::support::daemon::{Daemon, code, instance, machine};
use crate::support::launcher::waiting;
use crate::support::web;

/// Names that root reads, writes, connects to or gives away somewhere, besides those that are found.
const NAMES: [&str; 12] = [
    "exit.json",
    "kept.json",
    "launcher",
    "log",
    "started",
    "launch.json",
    "disk.img",
    "disk.new",
    "disk.img.new",
    "termination-log",
    "progress",
    "serial0",
];

/// The planted objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plant {
    Link,
    Dangling,
    Fifo,
    Device,
    HardLink,
}

const PLANTS: [Plant; 5] = [Plant::Link, Plant::Dangling, Plant::Fifo, Plant::Device, Plant::HardLink];

/// A file outside of the state that nothing may change.
struct Outside {
    folder: tempfile::TempDir,
}

impl Outside {
    fn new() -> Self {
        // On the same filesystem, so that it can be linked to.
        let folder = tempfile::Builder::new().prefix("fv-outside").tempdir_in("/var/tmp").unwrap();
        fs::write(folder.path().join("file"), "theirs").unwrap();
        fs::set_permissions(folder.path().join("file"), fs::Permissions::from_mode(0o604)).unwrap();
        Self { folder }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("file")
    }

    fn is_as_it_was(&self, when: &str) {
        let facts = fs::metadata(self.file()).unwrap();
        assert_eq!(fs::read(self.file()).unwrap(), b"theirs", "{when}");
        assert_eq!((facts.uid(), facts.gid(), facts.mode() & 0o7777), (0, 0, 0o604), "{when}");
        assert_eq!(fs::read_dir(self.folder.path()).unwrap().count(), 1, "{when}: a file was made");
    }

    /// Replaces the file at a path by the plant; a directory that the daemon has removed gets none.
    fn plant(&self, plant: Plant, at: &Path) {
        if fs::symlink_metadata(at).is_ok_and(|facts| facts.is_dir())
            || fs::remove_file(at).is_err() && at.exists()
        {
            return;
        }
        let node = |kind, device| Ok(mknodat(CWD, at, kind, Mode::from_raw_mode(0o666), device)?);
        let planted = match plant {
            Plant::Link => std::os::unix::fs::symlink(self.file(), at),
            Plant::Dangling => std::os::unix::fs::symlink(self.folder.path().join("new"), at),
            Plant::Fifo => node(FileType::Fifo, 0),
            // /dev/zero: it is read without an end.
            Plant::Device => node(FileType::CharacterDevice, rustix::fs::makedev(1, 5)),
            // It may lie on another filesystem.
            Plant::HardLink => {
                drop(fs::hard_link(self.file(), at));
                Ok(())
            }
        };
        if let Err(error) = planted {
            assert!(error.kind() == io::ErrorKind::NotFound, "{}: {error}", at.display());
        }
    }
}

/// Directories below `top` that a user may write to; links are not followed.
fn writable(top: &Path, user: u32, found: &mut Vec<PathBuf>) {
    let Ok(facts) = fs::symlink_metadata(top) else { return };
    if !facts.is_dir() {
        return;
    }
    let mode = facts.mode();
    if facts.uid() == user && mode & 0o200 != 0
        || facts.gid() == user && mode & 0o020 != 0
        || mode & 0o002 != 0
    {
        found.push(top.to_owned());
    }
    for entry in fs::read_dir(top).into_iter().flatten().flatten() {
        writable(&entry.path(), user, found);
    }
}

/// Plants into every directory that a user may write to; answers how many these were.
fn plant_as(daemon: &Daemon, outside: &Outside, user: u32, plant: Plant) -> usize {
    let mut directories = Vec::new();
    writable(&daemon.state(), user, &mut directories);
    for directory in &directories {
        let found = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let known = NAMES.iter().map(|name| directory.join(name));
        for path in found.chain(known).collect::<Vec<_>>() {
            outside.plant(plant, &path);
        }
    }
    directories.len()
}

fn answers(daemon: &Daemon, when: &str) {
    for words in [&["list"][..], &["get", "vm/mine", "-o", "json"], &["events", "mine"]] {
        prompt(daemon, words, when);
    }
}

/// The daemon answers within a second; the best of three, since the test machine has other work, too.
fn prompt(daemon: &Daemon, words: &[&str], when: &str) {
    let times = (0..3).map(|_| {
        let begun = Instant::now();
        assert!(daemon.command(words).status.success(), "{when}: {words:?}: {}", daemon.log());
        begun.elapsed()
    });
    let best = times.min().unwrap();
    assert!(best < Duration::from_secs(1), "{when}: {words:?} took {best:?}");
}

fn number(daemon: &Daemon, whose: &str) -> u32 {
    let ids: serde_json::Value =
        serde_json::from_slice(&fs::read(daemon.state().join("ids")).unwrap()).unwrap();
    let found = ids.as_object().unwrap().iter().find(|(name, _)| name.starts_with(whose));
    u32::try_from(found.unwrap().1.as_u64().unwrap()).unwrap()
}

#[test]
fn files_planted_by_users_change_nothing_outside() {
    let plants =
        if std::env::var_os("FERROVIRT_SOAK").is_some() { &PLANTS[..] } else { &[Plant::Link, Plant::Fifo] };
    let outside = Outside::new();
    for plant in plants {
        let mut daemon = Daemon::start();
        let image = daemon.image("disk.img", code::HALTS);
        let source = format!("{{http: {{url: \"file://{}\"}}}}", image.display());
        daemon.run(&format!(
            "{}---\n{}",
            machine("mine", "Always", &source, ""),
            machine("other", "Always", &source, "")
        ));
        daemon.until_serial("mine", "K");
        let (mine, other) = (daemon.user("mine"), daemon.user("other"));
        let transfer = number(&daemon, "claim/");
        assert!(mine != other && mine != transfer && other != transfer);
        for (who, user) in [("importer", transfer), ("mine", mine), ("other", other)] {
            let when = format!("{plant:?} by {who} while it runs");
            let count = plant_as(&daemon, &outside, user, *plant);
            assert!(who == "importer" || count > 0, "{when}: it has a directory of its own");
            answers(&daemon, &when);
            outside.is_as_it_was(&when);
        }
        // A new daemon reads all of it, and ends on SIGTERM.
        assert_eq!(daemon.end(Signal::TERM), Some(0), "{plant:?}: SIGTERM");
        daemon.again();
        answers(&daemon, &format!("{plant:?} and a new daemon"));
        daemon.command(&["stop", "mine", "--force"]);
        answers(&daemon, &format!("{plant:?} and a stop"));
        outside.is_as_it_was("after a stop");
        // Between two runs, and at the start of the next one, which may fail.
        daemon.until_within("mine", "Stopped", Duration::from_secs(120));
        for (who, user) in [("importer", transfer), ("mine", mine), ("other", other)] {
            plant_as(&daemon, &outside, user, *plant);
            answers(&daemon, &format!("{plant:?} by {who} while it is stopped"));
        }
        daemon.command(&["start", "mine"]);
        answers(&daemon, &format!("{plant:?} and a start"));
        outside.is_as_it_was("after a start");
        plant_as(&daemon, &outside, mine, *plant);
        // All of it goes, and nothing that it leads to.
        for name in ["mine", "other"] {
            daemon.says(&["delete", name, "--force"]);
            outside.is_as_it_was("after a deletion");
        }
        for folder in ["run", "claims", "guests"] {
            assert_eq!(daemon.names(folder), Vec::<String>::new(), "{plant:?}: {folder}");
        }
        drop(daemon);
        outside.is_as_it_was("at the end");
    }
}

/// A volume while it is filled is its transfer's user's.
#[test]
fn files_planted_by_an_importer_change_nothing_outside() {
    let plants = if std::env::var_os("FERROVIRT_SOAK").is_some() { &PLANTS[..] } else { &PLANTS[..1] };
    let outside = Outside::new();
    for plant in plants {
        let daemon = Daemon::start();
        let document = format!(
            "\
apiVersion: cdi.kubevirt.io/v1beta1
kind: DataVolume
metadata: {{name: mine}}
spec:
  source: {{http: {{url: \"{}\"}}}}
  storage: {{resources: {{requests: {{storage: 8Mi}}}}}}
",
            web::stalled("disk.img", vec![0x5a; 4 << 20])
        );
        let file = daemon.path("document.yaml");
        fs::write(&file, document).unwrap();
        // It waits for the volume, and is ended with the test.
        let _waiting = daemon.started(&["run", file.to_str().unwrap()], Stdio::null(), Stdio::null());
        let transfer = waiting::eventually("an importer that runs as its user", || {
            let ids: serde_json::Value =
                serde_json::from_slice(&fs::read(daemon.state().join("ids")).ok()?).ok()?;
            let id = ids.as_object()?.iter().find(|(name, _)| name.starts_with("claim/"))?.1.as_u64()?;
            let id = u32::try_from(id).ok()?;
            let runs = daemon.processes().iter().any(|(process, line)| {
                let owner = fs::metadata(format!("/proc/{process}")).map(|facts| facts.uid());
                line.contains("importer") && owner.is_ok_and(|owner| owner == id)
            });
            let mut found = Vec::new();
            writable(&daemon.state(), id, &mut found);
            (runs || !found.is_empty()).then_some(id)
        });
        let when = format!("{plant:?} by an importer while it fills a volume");
        assert!(plant_as(&daemon, &outside, transfer, *plant) > 0, "{when}");
        outside.is_as_it_was(&when);
        for words in [&["list"][..], &["get", "dv/mine", "-o", "json"]] {
            prompt(&daemon, words, &when);
        }
        daemon.says(&["delete", "dv/mine", "--force"]);
        outside.is_as_it_was(&when);
        assert_eq!(daemon.names("claims"), Vec::<String>::new(), "{when}");
    }
}

/// An archive with one member, which is a link, a FIFO, a device, or a second name of a file outside.
fn archive(plant: Plant, name: &str, outside: &Path) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o777);
    header.set_size(0);
    match plant {
        Plant::Link | Plant::Dangling => {
            let target =
                if plant == Plant::Link { outside.to_owned() } else { outside.with_file_name("new") };
            header.set_entry_type(tar::EntryType::Symlink);
            builder.append_link(&mut header, name, target).unwrap();
        }
        Plant::HardLink => {
            header.set_entry_type(tar::EntryType::Link);
            builder.append_link(&mut header, name, outside).unwrap();
        }
        Plant::Fifo => {
            header.set_entry_type(tar::EntryType::Fifo);
            builder.append_data(&mut header, name, std::io::empty()).unwrap();
        }
        Plant::Device => {
            header.set_entry_type(tar::EntryType::Char);
            header.set_device_major(1).unwrap();
            header.set_device_minor(5).unwrap();
            builder.append_data(&mut header, name, std::io::empty()).unwrap();
        }
    }
    builder.into_inner().unwrap()
}

/// A DataVolume of an archive, or of another claim's blocks.
fn volume(name: &str, source: &str, size: &str) -> String {
    let archive = if source.contains("http") { "contentType: archive\n  " } else { "" };
    format!(
        "\
apiVersion: cdi.kubevirt.io/v1beta1
kind: DataVolume
metadata: {{name: {name}}}
spec:
  {archive}source: {source}
  storage: {{resources: {{requests: {{storage: {size}}}}}}}
"
    )
}

/// The first of the attacks: `disk.new` of the archive was followed, truncated, given away and shown to the guest as a disk.
/// Every step of the volume's life follows: it is used, grows, is cloned, the clone is used, both are deleted.
#[test]
fn entries_of_an_archive_change_nothing_outside() {
    let sample = [(Plant::Link, "disk.new"), (Plant::Link, "disk.img"), (Plant::HardLink, "disk.img")];
    let all: Vec<(Plant, &str)> =
        PLANTS.iter().flat_map(|plant| ["disk.new", "disk.img"].map(|name| (*plant, name))).collect();
    let cases = if std::env::var_os("FERROVIRT_SOAK").is_some() { &all[..] } else { &sample[..] };
    let outside = Outside::new();
    let daemon = Daemon::start();
    let file = daemon.path("document.yaml");
    let given = file.to_str().unwrap();
    for (number, (plant, link)) in cases.iter().enumerate() {
        let what = format!("{plant:?} {link}");
        let name = format!("v{number}");
        let url = web::file("files.tar", archive(*plant, link, &outside.file()));
        let source = format!("{{http: {{url: \"{url}\"}}}}");
        let document = volume(&name, &source, "8Mi")
            + "---\n"
            + &instance(&format!("on-{name}"), &format!("dataVolume: {{name: {name}}}"));
        fs::write(&file, document).unwrap();
        // An archive that is refused is tried again, and waited for.
        let running = daemon.started(&["run", "--detach", given], Stdio::null(), Stdio::null());
        let events = waiting::eventually("the archive is imported or refused", || {
            let events = daemon.says(&["events"]);
            let of = |reason: &str| events.lines().any(|line| line.contains(&name) && line.contains(reason));
            (of("ImportSucceeded") || of("ImportFailed")).then_some(events)
        });
        let about = |reason: &str| events.lines().any(|line| line.contains(&name) && line.contains(reason));
        outside.is_as_it_was(&what);
        prompt(&daemon, &["list"], &what);
        if about("ImportSucceeded") {
            let run = format!("vmi/on-{name}");
            // A link next to the disk does no harm; anything in its place is refused, each time that it is tried.
            let run = waiting::eventually("an instance that runs or cannot be started", || {
                let object = daemon.object(&run)?;
                let failed = daemon.says(&["events", &format!("on-{name}")]).contains("StartFailed");
                (failed || object["status"]["phase"] == "Running").then_some(object)
            });
            assert_eq!(run["status"]["phase"] == "Running", *link == "disk.new", "{what}: {run}");
            outside.is_as_it_was(&what);
            daemon.says(&["delete", &format!("vmi/on-{name}"), "--force"]);
            // It grows, is cloned, and the clone is started from.
            let clone = format!("c{number}");
            let larger = "\
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: NAME}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 12Mi}}}
"
            .replace("NAME", &name);
            let document = larger
                + "---\n"
                + &volume(&clone, &format!("{{pvc: {{name: {name}}}}}"), "12Mi")
                + "---\n"
                + &instance(&format!("on-{clone}"), &format!("dataVolume: {{name: {clone}}}"));
            fs::write(&file, document).unwrap();
            let cloning = daemon.started(&["run", "--detach", given], Stdio::null(), Stdio::null());
            waiting::eventually("a clone that is there or refused", || {
                let events = daemon.says(&["events", &clone]);
                prompt(&daemon, &["list"], &what);
                ["ImportSucceeded", "Failed"].iter().any(|word| events.contains(word)).then_some(())
            });
            outside.is_as_it_was(&what);
            drop(cloning);
            daemon.command(&["delete", &format!("vmi/on-{clone}"), "--force"]);
            daemon.command(&["delete", &format!("dv/{clone}"), "--force"]);
        }
        drop(running);
        daemon.command(&["delete", &format!("vmi/on-{name}"), "--force"]);
        daemon.says(&["delete", &format!("dv/{name}"), "--force"]);
        outside.is_as_it_was(&what);
    }
    waiting::eventually("all volumes are gone", || daemon.names("claims").is_empty().then_some(()));
    outside.is_as_it_was("at the end");
}

/// An upload server that waits, takes an image, and is asked to end; everything that its user may write to is planted.
#[test]
fn files_planted_by_an_upload_server_change_nothing_outside() {
    let plants =
        if std::env::var_os("FERROVIRT_SOAK").is_some() { &PLANTS[..] } else { &[Plant::Link, Plant::Fifo] };
    let outside = Outside::new();
    for plant in plants {
        let mut daemon = Daemon::start();
        let document = daemon.path("document.yaml");
        fs::write(&document, volume("mine", "{upload: {}}", "8Mi")).unwrap();
        let waiting_run = daemon.started(&["run", document.to_str().unwrap()], Stdio::null(), Stdio::null());
        let ready = |daemon: &Daemon| {
            waiting::eventually("an upload server", || {
                let volume = daemon.object("dv/mine")?;
                (volume["status"]["phase"] == "UploadReady").then_some(())
            });
        };
        ready(&daemon);
        let transfer = number(&daemon, "claim/");
        let when = format!("{plant:?} by an upload server that waits");
        assert!(plant_as(&daemon, &outside, transfer, *plant) > 0, "{when}");
        outside.is_as_it_was(&when);
        for words in [&["list"][..], &["get", "dv/mine", "-o", "json"], &["events", "mine"]] {
            prompt(&daemon, words, &when);
        }
        // An image comes, into whatever is in the disk's place now; it may be refused.
        let image = daemon.image("image", code::HALTS);
        let upload = ["image-upload", "dv", "mine", "--no-create", "--image-path", image.to_str().unwrap()];
        let uploading = daemon.started(&upload, Stdio::null(), Stdio::null());
        for _ in 0..5 {
            prompt(&daemon, &["list"], &when);
            std::thread::sleep(Duration::from_millis(200));
        }
        outside.is_as_it_was(&when);
        drop(uploading);
        // The next daemon finds the planted files, and a server that it did not start.
        assert_eq!(daemon.end(Signal::TERM), Some(0), "{when}: SIGTERM");
        plant_as(&daemon, &outside, transfer, *plant);
        daemon.again();
        prompt(&daemon, &["list"], &when);
        outside.is_as_it_was(&when);
        drop(waiting_run);
        daemon.says(&["delete", "dv/mine", "--force"]);
        waiting::eventually("the volume is gone", || daemon.names("claims").is_empty().then_some(()));
        drop(daemon);
        outside.is_as_it_was(&when);
    }
}
