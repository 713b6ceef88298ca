//! Misuse of a daemon: names used twice, verbs for missing objects, concurrent requests, a state directory that is removed,
//! or full. Nothing is lost silently, and each error is reported.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::daemon::{
    self, Daemon, code, eventually, instance, machine, output, peak, read_until, started,
};
use crate::support::launcher::waiting;

/// A machine on a disk of the daemon's folder.
fn document(daemon: &Daemon, name: &str) -> String {
    let image = daemon.image("disk.img", code::HALTS);
    machine(name, "Always", &format!("{{http: {{url: \"file://{}\"}}}}", image.display()), "")
}

/// The volume of a run without a VM.
const DISK: &str = "emptyDisk: {capacity: 1Mi}";

fn tried(daemon: &Daemon, document: &str) -> Output {
    let file = daemon.path("tried.yaml");
    fs::write(&file, document).unwrap();
    daemon.command(&["run", "--detach", file.to_str().unwrap()])
}

fn is_refused(output: &Output, wanted: &str) {
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && told.contains(wanted), "{wanted}: {output:?}");
}

#[test]
fn a_machine_and_a_run_that_is_not_its_own_have_other_names() {
    let daemon = Daemon::start();
    let wanted = "rename one of them";
    daemon.run(&instance("mine", DISK));
    let run = daemon.object("vmi/mine").unwrap()["metadata"]["uid"].clone();
    let machine = document(&daemon, "mine");
    is_refused(&tried(&daemon, &machine), wanted);
    assert!(daemon.object("vm/mine").is_none());
    assert_eq!(daemon.object("vmi/mine").unwrap()["metadata"]["uid"], run, "it is the same run");
    daemon.says(&["delete", "vmi/mine"]);
    is_refused(&tried(&daemon, &format!("{machine}---\n{}", instance("mine", DISK))), wanted);
    assert!(daemon.object("mine").is_none());

    daemon.run(&machine);
    daemon.says(&["stop", "mine", "--force"]);
    daemon.until("mine", "Stopped");
    eventually("the run of the VM is gone", || daemon.object("vmi/mine").is_none().then_some(()));
    is_refused(&tried(&daemon, &instance("mine", DISK)), wanted);

    // The output of `get` for a VM and its run can be stored again: while they exist, and when they are gone.
    daemon.says(&["start", "mine"]);
    daemon.until_serial("mine", "K");
    let printed = daemon.says(&["get", "mine", "-o", "yaml"]);
    let said = daemon.run(&printed);
    assert!(said.contains("VirtualMachine default/mine unchanged"), "{said}");
    assert!(said.contains("metadata.ownerReferences"), "what is left out is told: {said}");
    let conditions = daemon.object("vmi/mine").unwrap()["status"]["conditions"].to_string();
    assert!(!conditions.contains("FieldsWithoutEffect"), "{conditions}");
    daemon.says(&["delete", "mine", "--force"]);
    daemon.run(&printed);
    daemon.until_serial("mine", "K");
    daemon.says(&["delete", "mine", "--force"]);
    assert_eq!(daemon.names("run"), Vec::<String>::new());
}

#[test]
fn verbs_for_missing_objects_are_refused() {
    let daemon = Daemon::start();
    for words in [
        &["pause", "nobody"][..],
        &["unpause", "nobody"],
        &["soft-reboot", "nobody"],
        &["reset", "nobody"],
        &["console", "nobody"],
        &["start", "nobody"],
        &["stop", "nobody"],
        &["restart", "nobody"],
        &["addvolume", "nobody", "--volume-name", "none"],
        &["removevolume", "nobody", "--volume-name", "none"],
        &["get", "nobody"],
        &["delete", "nobody"],
    ] {
        let output = daemon.command(words);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        let named = told.contains("default/nobody") || told.contains("none");
        assert!(output.status.code() == Some(1) && named, "{words:?}: {output:?}");
        assert!(!told.contains("does not run"), "{words:?}: {told}");
    }
    // An object of another kind is named, with the command for it; nothing happens to it.
    daemon.run(&instance("runs", DISK));
    let volume = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: claim}\nspec: {accessModes: \
                  [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}\n";
    daemon.run(volume);
    for (words, wanted) in [
        (["stop", "runs"], "`virt-node delete -n default vmi/runs` ends it"),
        (["delete", "claim"], "`virt-node delete -n default PersistentVolumeClaim/claim` deletes it"),
    ] {
        is_refused(&daemon.command(&words), wanted);
    }
    assert!(daemon.object("vmi/runs").is_some() && daemon.object("pvc/claim").is_some());
    // Requests for missing objects leave no open descriptor.
    let open = || fs::read_dir(format!("/proc/{}/fd", daemon.id())).unwrap().count();
    let before = open();
    for n in 0..20 {
        assert_eq!(daemon.command(&["console", &format!("nobody-{n}")]).status.code(), Some(1));
    }
    eventually("descriptors that are closed", || (open() < before + 10).then_some(()));
}

#[test]
fn a_refused_document_is_reported_line_by_line() {
    let daemon = Daemon::start();
    let wrong =
        document(&daemon, "wrong").replace("runStrategy: Always", "runStrategy: Always\n  nonsense: 1");
    let refused = tried(&daemon, &wrong);
    is_refused(&refused, "the documents are refused, and nothing of them is stored");
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(told.lines().any(|line| line.contains("spec.nonsense: no such field")), "{told}");
    assert!(!told.contains("\\n"), "{told}");
}

#[test]
fn a_guest_with_a_forbidden_disk_reports_it_and_can_be_deleted() {
    let daemon = Daemon::start();
    // By an access control list, only QEMU finds it out.
    for (name, listed, reason) in
        [("closed", false, "cannot enter the directory"), ("listed", true, "Permission denied")]
    {
        let folder = daemon.path(name);
        fs::create_dir(&folder).unwrap();
        let image = daemon.image(&format!("{name}/roots.img"), code::HALTS);
        fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).unwrap();
        if listed {
            // acl(5): user::rwx, user:1:---, group::---, mask::---, other::---
            let entries: [(u16, u16, u32); 5] =
                [(1, 7, u32::MAX), (2, 0, 1), (4, 0, u32::MAX), (0x10, 0, u32::MAX), (0x20, 0, u32::MAX)];
            let mut list = 2_u32.to_le_bytes().to_vec();
            for (tag, allowed, id) in entries {
                list.extend([tag.to_le_bytes(), allowed.to_le_bytes()].concat());
                list.extend(id.to_le_bytes());
            }
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&folder, "system.posix_acl_access", &list, flags).unwrap();
        }
        let disk = format!("hostDisk: {{path: \"{}\", type: Disk}}", image.display());
        let file = daemon.path("roots.yaml");
        fs::write(&file, instance("roots", &disk)).unwrap();
        let _run = daemon.started(&["run", file.to_str().unwrap()], Stdio::null(), Stdio::null());
        let events = eventually("why it does not start", || {
            let events = daemon.says(&["events", "roots"]);
            println!("{events}");
            (events.contains("StartFailed") && events.contains(reason)).then_some(events)
        });
        if listed {
            // The sentence first, the text of libvirt or QEMU after it.
            let at = |text: &str| events.find(text).unwrap_or_else(|| panic!("{text}: {events}"));
            assert!(at("the launcher does not start roots: ") < at(reason), "{events}");
        }
        daemon.says(&["delete", "vmi/roots"]);
        assert_eq!(daemon.names("run"), Vec::<String>::new());
        assert_eq!(daemon.process("virt-launcher"), None);
    }
}

#[test]
fn requested_memory_waits_for_the_next_run_with_one_event() {
    let daemon = Daemon::start();
    let with = |amount: &str| {
        let requests = format!("resources: {{requests: {{memory: {amount}}}}}");
        document(&daemon, "mine").replace("memory: {guest: 64Mi}", &requests)
    };
    daemon.run(&with("64Mi"));
    daemon.until_serial("mine", "K");
    let said = daemon.run(&with("128Mi"));
    assert!(said.contains("RestartRequired"), "{said}");
    let told = || {
        let machine = daemon.object("vm/mine").unwrap();
        let conditions = machine["status"]["conditions"].as_array().unwrap().clone();
        let condition = conditions.into_iter().find(|one| one["type"] == "RestartRequired");
        (machine["metadata"]["resourceVersion"].clone(), condition)
    };
    let before = told();
    assert!(before.1.as_ref().is_some_and(|one| one["status"] == "True"), "{before:?}");
    // Looking again later changes nothing: it is as long since it became so.
    let since = before.1.as_ref().unwrap()["lastTransitionTime"].as_str().unwrap().to_owned();
    let now = || output_of("date", &["-u", "-d", "1 second ago", "+%Y-%m-%dT%H:%M:%SZ"]);
    eventually("a later second", || (now() > since).then_some(()));
    daemon.says(&["list"]);
    daemon.says(&["list"]);
    assert_eq!(told(), before);
    assert_eq!(daemon.says(&["events", "mine"]).matches("RestartRequired").count(), 1);
    daemon.says(&["restart", "mine", "--force"]);
    eventually("a run with more memory", || {
        let run = daemon.object("vmi/mine")?;
        (run["status"]["memory"]["guestAtBoot"] == "128Mi").then_some(())
    });
    eventually("the condition's end", || told().1.is_none().then_some(()));
    daemon.says(&["delete", "mine", "--force"]);
}

fn output_of(program: &str, words: &[&str]) -> String {
    let output = waiting::output(Command::new(program).args(words));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_folder_that_is_removed_under_its_daemon_is_not_written_again_by_it() {
    let mut daemon = Daemon::start();
    // The volumes' driver, which the daemon starts in the background, makes files there until it serves.
    eventually("the volumes' driver", || UnixStream::connect(daemon.state().join("csi/csi.sock")).ok());
    fs::remove_dir_all(daemon.state()).unwrap();
    let daemons = || daemon.processes().into_iter().filter(|(_, line)| line.contains(" serve ")).count();
    eventually("its end", || (daemons() == 0).then_some(()));
    assert!(daemon.log().contains("was removed while it was served"), "{}", daemon.log());
    assert!(!daemon.state().exists());
    // The next one starts from the beginning.
    daemon.again();
    daemon.run(&document(&daemon, "mine"));
    daemon.until_serial("mine", "K");
    daemon.says(&["delete", "mine", "--force"]);
}

/// A state folder in memory, unmounted when dropped.
struct Small(PathBuf);

impl Drop for Small {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).output());
    }
}

#[test]
fn on_a_full_disk_machines_can_be_stopped_and_deleted() {
    let mut daemon = Daemon::start();
    let document = document(&daemon, "mine");
    assert_eq!(daemon.end(Signal::TERM), Some(0));
    let small = Small(daemon.state());
    let mount = waiting::output(
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=64m,mode=711", "tmpfs"]).arg(&small.0),
    );
    assert!(mount.status.success(), "{mount:?}");
    daemon.again();
    daemon.run(&document);
    daemon.until_serial("mine", "K");
    let fill = daemon.state().join("fill");
    let mut file = fs::File::create(&fill).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    drop(file);
    // New objects and changes are refused with a message.
    is_refused_by_the_system(&tried(&daemon, &instance("more", DISK)), "no space left to store");
    let changed = document.replace("64Mi}", "128Mi}");
    is_refused_by_the_system(&tried(&daemon, &changed), "no space left to store");
    daemon.says(&["stop", "mine", "--force"]);
    daemon.until("mine", "Stopped");
    assert!(daemon.says(&["events"]).contains("NoRoom"));
    daemon.says(&["delete", "mine"]);
    for folder in ["run", "claims", "guests"] {
        assert_eq!(daemon.names(folder), Vec::<String>::new(), "{folder}");
    }
    // Later changes are stored as before.
    fs::remove_file(&fill).unwrap();
    daemon.run(&document);
    daemon.until_serial("mine", "K");
    daemon.end(Signal::KILL);
    daemon.again();
    daemon.until("mine", "Running");
    daemon.says(&["delete", "mine", "--force"]);
    daemon.end(Signal::TERM);
}

fn is_refused_by_the_system(output: &Output, wanted: &str) {
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(3) && told.contains(wanted), "{wanted}: {output:?}");
}

#[test]
fn commands_that_start_the_daemon_at_the_same_time_share_it() {
    let mut daemon = Daemon::start();
    assert_eq!(daemon.end(Signal::TERM), Some(0));
    for round in 0..3 {
        let file = daemon.path("claim.yaml");
        fs::write(&file, format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: map-{round}}}\n"))
            .unwrap();
        let words = ["run", file.to_str().unwrap()];
        let commands: Vec<_> =
            (0..4).map(|_| daemon.started(&words, Stdio::null(), Stdio::piped())).collect();
        for mut command in commands {
            let said = daemon::rest(command.0.stdout.as_mut().unwrap());
            assert_eq!(daemon::end_of(&mut command.0, "run").code(), Some(0), "{said}");
            assert!(said.contains(&format!("map-{round}")), "{said}");
        }
        // On a busy machine one that a command started may begin to serve only now.
        let mut asked = None;
        eventually("the daemon's end", || {
            let serving = daemon.process(" serve ");
            if let Some(process) = serving.filter(|_| serving != asked) {
                daemon::kill(process, Signal::TERM);
                asked = serving;
            }
            serving.is_none().then_some(())
        });
    }
}

#[test]
fn members_of_the_group_use_vms_and_change_no_object() {
    let mut daemon = Daemon::with_accounts();
    // The directory of the build may be root's.
    let program = daemon.path("own-virt-node");
    fs::copy(env!("CARGO_BIN_EXE_virt-node"), &program).unwrap();
    let as_user = |daemon: &Daemon, group: &str, words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", &format!("--groups={group}")]).arg(&program);
        command.args(words).arg("--state").arg(daemon.state()).stdin(Stdio::null());
        output(&mut command)
    };
    let socket = |daemon: &Daemon| {
        let socket = fs::metadata(daemon.state().join("virt-node.sock")).unwrap();
        (socket.uid(), socket.gid(), socket.mode() & 0o777)
    };
    let no_member = "members of the group ferrovirt";
    assert_eq!(socket(&daemon), (0, 0, 0o600));
    is_refused_by_the_system(&as_user(&daemon, "4321", &["list"]), no_member);
    let groups = daemon.path("group");
    let accounts = fs::read_to_string(&groups).unwrap();
    fs::write(&groups, format!("{accounts}ferrovirt:x:4321:\n")).unwrap();
    daemon.end(Signal::TERM);
    daemon.again();
    assert_eq!(socket(&daemon), (0, 4321, 0o660));
    is_refused_by_the_system(&as_user(&daemon, "65534", &["list"]), no_member);

    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: hidden}\nstringData: {key: value}\n";
    let machine = document(&daemon, "mine").replace("runStrategy: Always", "runStrategy: Halted");
    daemon.apply(&format!("{machine}---\n{secret}"));
    let does = |daemon: &Daemon, words: &[&str]| {
        let output = as_user(daemon, "4321", words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(does(&daemon, &["list"]).contains("mine"));
    does(&daemon, &["start", "mine"]);
    daemon.until_serial("mine", "K");
    daemon.until("mine", "Running");
    assert!(does(&daemon, &["get", "vmi/mine", "-o", "yaml"]).contains("phase: Running"));
    assert!(does(&daemon, &["events", "mine"]).contains("Started"), "{}", does(&daemon, &["events", "mine"]));
    let echoes = daemon.image("echoes.img", code::ECHOES);
    daemon.run(&instance("echoes", &format!("hostDisk: {{path: \"{}\", type: Disk}}", echoes.display())));
    daemon.until_serial("echoes", "K");
    let mut console = Command::new("setpriv");
    console.args(["--reuid=65534", "--regid=65534", "--groups=4321"]).arg(&program);
    console.args(["console", "echoes", "--state"]).arg(daemon.state());
    let mut console = started(console.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()));
    console.0.stdin.as_mut().unwrap().write_all(b"typed by a member").unwrap();
    read_until(console.0.stdout.as_mut().unwrap(), "typed by a member");
    drop(console);
    daemon.says(&["delete", "vmi/echoes"]);
    does(&daemon, &["pause", "mine"]);
    daemon.until("mine", "Paused");
    does(&daemon, &["unpause", "mine"]);
    daemon.until("mine", "Running");
    does(&daemon, &["stop", "mine", "--force"]);
    daemon.until("mine", "Stopped");
    let file = daemon.path("document.yaml");
    let file = file.to_str().unwrap();
    for words in [
        &["get", "secret/hidden"][..],
        &["delete", "mine"],
        &["apply", file],
        &["run", file],
        &["addvolume", "mine", "--volume-name", "mine"],
        &["removevolume", "mine", "--volume-name", "mine"],
        &["image-upload", "dv", "mine", "--size", "1Mi", "--image-path", file],
    ] {
        is_refused_by_the_system(&as_user(&daemon, "4321", words), "run this command as root");
    }
    assert_eq!(daemon.status("mine"), "Stopped");
}

/// The file of a halted machine that `run` had started was kept again, and that ended the guest.
#[test]
fn run_starts_a_halted_machine_once_and_apply_starts_none() {
    let daemon = Daemon::start();
    let document = document(&daemon, "mine").replace("runStrategy: Always", "runStrategy: Halted");
    let file = daemon.path("mine.yaml");
    fs::write(&file, &document).unwrap();
    let said = daemon.says(&["apply", file.to_str().unwrap()]);
    assert!(said.contains("VirtualMachine default/mine created"), "{said}");
    daemon.until("mine", "Stopped");
    daemon.run(&document);
    daemon.until_serial("mine", "K");
    let first = daemon.object("vmi/mine").unwrap()["metadata"]["uid"].clone();
    let strategy = || daemon.object("vm/mine").unwrap()["spec"]["runStrategy"].clone();
    for _ in 0..2 {
        let said = daemon.run(&document);
        assert!(said.contains("VirtualMachine default/mine unchanged"), "{said}");
        assert!(daemon.says(&["apply", file.to_str().unwrap()]).contains("unchanged"));
    }
    assert_eq!(daemon.object("vmi/mine").unwrap()["metadata"]["uid"], first, "it is the same run");
    assert_eq!((daemon.status("mine").as_str(), strategy()), ("Running", serde_json::json!("Halted")));
    daemon.says(&["stop", "mine", "--force"]);
    daemon.until("mine", "Stopped");
    daemon.says(&["start", "mine"]);
    assert_eq!(strategy(), "Always", "as virtctl does");
    daemon.until("mine", "Running");
    daemon.says(&["apply", file.to_str().unwrap()]);
    daemon.until("mine", "Stopped");
    daemon.says(&["delete", "mine", "--force"]);
}

/// A disk that fills up between the objects of a document.
#[test]
fn a_document_is_kept_as_a_whole_or_not_at_all() {
    let mut daemon = Daemon::start();
    assert_eq!(daemon.end(Signal::TERM), Some(0));
    let small = Small(daemon.state());
    let mount = waiting::output(
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=16m,mode=711", "tmpfs"]).arg(&small.0),
    );
    assert!(mount.status.success(), "{mount:?}");
    daemon.again();
    let map = |number: usize, size: usize| {
        let text = "x".repeat(size);
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: map-{number}}}\ndata: {{text: {text}}}\n---\n"
        )
    };
    daemon.run(&map(0, 10));
    // Room for some of them, and for a journal of none or of all.
    for size in [160 << 10, 900 << 10] {
        let maps: String = (0..12).map(|number| map(number, size + number)).collect();
        let file = daemon.path("maps.yaml");
        fs::write(&file, maps).unwrap();
        let fill = daemon.state().join("fill");
        let room = rustix::fs::statvfs(daemon.state().as_path()).unwrap();
        let room = usize::try_from(room.f_bavail * room.f_frsize).unwrap();
        fs::write(&fill, vec![0; room - (3 << 20)]).unwrap();
        let output = daemon.command(&["apply", file.to_str().unwrap()]);
        is_refused_by_the_system(&output, "nothing of the request is kept");
        fs::remove_file(&fill).unwrap();
        let kept = |daemon: &Daemon| {
            let text = daemon.object("cm/map-0").unwrap()["data"]["text"].as_str().unwrap().len();
            (text, daemon.names("objects/ConfigMap/default"))
        };
        assert_eq!(kept(&daemon), (10, vec!["map-0".to_owned()]));
        daemon.end(Signal::KILL);
        daemon.again();
        assert_eq!(kept(&daemon), (10, vec!["map-0".to_owned()]));
    }
    let maps: String = (0..3).map(|number| map(number, 100)).collect();
    daemon.run(&maps);
    assert_eq!(daemon.names("objects/ConfigMap/default").len(), 3);
    daemon.end(Signal::TERM);
}

/// Every message had all objects looked at: with 61 machines a list took 23 s.
#[test]
fn many_halted_machines_slow_nothing_down() {
    let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
    let count = if soak { 500 } else { 100 };
    let daemon = Daemon::start();
    let halted = |name: &str| document(&daemon, name).replace("runStrategy: Always", "runStrategy: Manual");
    daemon.apply(&halted("first"));
    daemon.until("first", "Stopped");
    let median = |mut times: Vec<Duration>| {
        times.sort();
        times[times.len() / 2]
    };
    let timed = |words: &[&str]| {
        let begun = Instant::now();
        daemon.says(words);
        begun.elapsed()
    };
    let measure = || {
        let lists = median((0..9).map(|_| timed(&["list"])).collect());
        let (mut starts, mut stops) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            starts.push(timed(&["start", "first"]));
            daemon.until("first", "Running");
            stops.push(timed(&["stop", "first", "--force"]));
            daemon.until("first", "Stopped");
        }
        (lists, median(starts), median(stops))
    };
    let alone = measure();
    // Their volumes are not made: it is objects that there are many of.
    let many: String = (0..count)
        .map(|number| {
            let run = instance(&format!("vm-{number}"), DISK);
            let spec = run.split_once("spec:\n").unwrap().1.lines().map(|line| format!("    {line}\n"));
            let spec: String = spec.collect();
            format!(
                "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: vm-{number}}}\n\
                 spec:\n  runStrategy: Halted\n  template:\n    spec:\n{spec}---\n"
            )
        })
        .collect();
    let begun = Instant::now();
    daemon.apply(&many);
    println!("{count} machines are kept after {:?}", begun.elapsed());
    let all = measure();
    let memory = peak(daemon.id());
    println!("alone: list, start, stop {alone:?}; with {count} more {all:?}; the daemon's peak {memory} MiB");
    let bar = if soak { Duration::from_millis(50) } else { Duration::from_millis(500) };
    assert!(all.0 < bar, "{all:?}");
    let more = if soak { Duration::from_millis(10) } else { Duration::from_millis(500) };
    assert!(all.1 <= alone.1 + more && all.2 <= alone.2 + more, "{alone:?} {all:?}");
    daemon.says(&["delete", "first", "--force"]);
}
