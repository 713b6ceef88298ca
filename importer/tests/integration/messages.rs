//! Messages and exit codes for users: wrong usage, invalid sources, servers of another kind than their address suggests,
//! reports and signals.

use std::fs::{self, File, OpenOptions};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use places::guest::Dice;
use places::run;

use crate::support::server::{Served, Server};
use crate::support::{self, assert_exit, import, importer, names, report, text};

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    /// A folder with "image" in it, 2 MiB that do not compress.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("image"), Dice(1).bytes(2 << 20)).unwrap();
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn text(&self, name: &str) -> String {
        self.path().join(name).to_str().unwrap().to_owned()
    }
}

#[track_caller]
fn assert_said(ran: &Output, code: i32, words: &[&str]) {
    assert_exit(ran, code, &words.join(" "));
    for word in words {
        assert!(text(&ran.stderr).contains(word), "\"{word}\" is not in: {}", text(&ran.stderr));
    }
}

/// Runs to the end, which comes soon.
#[track_caller]
fn soon(command: &mut Command) -> Output {
    let started = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > Duration::from_secs(10) {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{command:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn a_pipe_by_name_is_refused_at_once() {
    let place = Place::new();
    let fifo = place.text("fifo");
    run("mkfifo", &[&fifo]);
    let _socket = UnixListener::bind(place.path().join("socket")).unwrap();
    let (disk, socket) = (place.text("disk"), place.text("socket"));
    let (archive, named) = (format!("oci-archive:{fifo}"), format!("oci-archive:{fifo}:v1"));
    let check = |with: &str| {
        for (arguments, word) in [
            (vec![fifo.as_str(), &disk], "is a pipe; give -"),
            (vec!["inspect", &fifo], "is a pipe; give -"),
            (vec![&archive, &disk], "save it to a file first"),
            (vec!["oci-archive:-", &disk], "save it to a file first"),
            (vec![&named, &disk], "save it to a file first"),
            (vec![&socket, &disk], "is a socket; give -"),
            (vec!["/dev/null", &disk], "give - and a pipe"),
            (vec![place.path().to_str().unwrap(), &disk], "is a folder"),
        ] {
            let ran = soon(importer().args(&arguments));
            assert_said(&ran, 3, &[word]);
            assert!(!Path::new(&disk).exists(), "{with}");
        }
    };
    check("nobody writes");
    // For both ways, so that opening does not wait.
    let writer = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    check("somebody writes");
    drop(writer);
    // As a target neither.
    assert_said(&soon(importer().args([&place.text("image"), &fifo])), 7, &["neither a file nor a block"]);
}

#[test]
fn a_window_above_the_limit_is_refused() {
    let place = Place::new();
    let image = place.text("image");
    for (tool, options, limit) in
        [("xz", &["-k", "-9"][..], "1Mi"), ("zstd", &["-q", "--ultra", "--long=24"], "64Ki")]
    {
        run(tool, &[options, &[&image]].concat());
        let packed = format!("{image}.{}", if tool == "xz" { "xz" } else { "zst" });
        let disk = place.text("disk");
        let arguments = [packed.as_str(), &disk, "--window-limit", limit, "--output", "json"];
        let ran = import(&arguments);
        assert_said(&ran, 4, &["--window-limit"]);
        assert_eq!(report(&ran)["kind"], "refused");
        let piped = support::import_piped(Path::new(&packed), &["-", &disk, "--window-limit", limit]);
        assert_said(&piped, 4, &["--window-limit"]);
        assert_said(&import(&["inspect", &packed, "--window-limit", limit]), 4, &["--window-limit"]);
        assert!(!Path::new(&disk).exists());
    }
}

#[test]
fn a_damaged_image_is_rejected_and_leaves_nothing() {
    let place = Place::new();
    let (image, disk) = (place.text("image"), place.text("disk"));
    run("gzip", &["-k", &image]);
    let gzip = format!("{image}.gz");
    let mut bytes = fs::read(&gzip).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].fill(0xff);
    fs::write(&gzip, bytes).unwrap();
    let qcow2 = place.text("qcow2");
    run("qemu-img", &["convert", "-O", "qcow2", &image, &qcow2]);
    let mut bytes = fs::read(&qcow2).unwrap();
    // The first entry of the L1 table points into the middle of a cluster.
    let l1 = usize::try_from(u64::from_be_bytes(bytes[40..48].try_into().unwrap())).unwrap();
    bytes[l1 + 6] ^= 0x02;
    fs::write(&qcow2, bytes).unwrap();
    for (damaged, word) in [(&gzip, "the gzip stream is damaged"), (&qcow2, "L1 entry 0")] {
        let ran = import(&[damaged, &disk, "--output", "json"]);
        assert_said(&ran, 4, &[word]);
        assert_eq!(report(&ran)["exit_code"], 4);
        assert!(!Path::new(&disk).exists(), "{damaged}: {:?}", names(place.path()));
    }
    assert_eq!(names(place.path()), ["image", "image.gz", "qcow2"]);
}

#[test]
fn a_report_that_cannot_be_written_is_a_failure() {
    let place = Place::new();
    let (image, disk) = (place.text("image"), place.text("disk"));
    let full = || Stdio::from(OpenOptions::new().write(true).open("/dev/full").unwrap());
    for arguments in [
        vec![image.as_str(), &disk, "--force", "--output", "json"],
        vec![&image, &disk, "--force"],
        vec!["inspect", &image],
        vec!["completion", "bash"],
        vec!["--help"],
    ] {
        let ran = importer().args(&arguments).stdout(full()).stderr(Stdio::piped()).output().unwrap();
        assert_exit(&ran, 1, arguments[0]);
    }
    assert!(fs::read(&disk).unwrap() == fs::read(&image).unwrap(), "the disk is complete all the same");
    // Messages on the way may be lost.
    let ran =
        importer().args([&image, &disk, "--force", "-v=5", "--log-json"]).stderr(full()).output().unwrap();
    assert_exit(&ran, 0, "stderr is full");
}

#[test]
fn the_proxy_and_the_wrong_scheme_are_named() {
    let place = Place::new();
    let disk = place.text("disk");
    for (variable, url) in [
        ("http_proxy", "http://image.invalid/i"),
        ("https_proxy", "https://image.invalid/i"),
        ("https_proxy", "s3://bucket/key"),
        ("https_proxy", "gs://bucket/key"),
    ] {
        let mut command = importer();
        command.env(variable, "http://me:secret@127.0.0.1:1").args([url, &disk, "--patience", "0"]);
        let ran = soon(&mut command);
        assert_said(&ran, 3, &["through the proxy 127.0.0.1:1"]);
        assert!(!text(&ran.stderr).contains("secret"), "{}", text(&ran.stderr));
        // Not where it is not asked.
        let other = if variable == "http_proxy" { "https_proxy" } else { "http_proxy" };
        let mut command = importer();
        command.env(other, "http://127.0.0.1:1").args(["http://127.0.0.1:1/i", &disk, "--patience", "0"]);
        let ran = soon(command.env("no_proxy", "127.0.0.1"));
        assert_said(&ran, 3, &["cannot connect to http://127.0.0.1:1/i"]);
        assert!(!text(&ran.stderr).contains("proxy"), "{}", text(&ran.stderr));
    }
    let server = Server::start(place.path());
    let url = server.url(Served::Ranges, "image").replace("http://", "https://");
    let ran = soon(importer().args([&url, &disk]));
    assert_said(&ran, 3, &["does not speak TLS: is it http://?"]);
    // A directory is forbidden, and there are no credentials.
    let ran = soon(importer().args([&server.url(Served::Ranges, ""), &disk]));
    assert_said(&ran, 3, &["403", "it forbids reading this"]);
    assert!(!text(&ran.stderr).contains("credentials given"), "{}", text(&ran.stderr));
    fs::write(place.path().join("user"), "me\nsecret\n").unwrap();
    let user = place.text("user");
    let ran = soon(importer().args([&server.url(Served::Ranges, ""), &disk, "--user-file", &user]));
    assert_said(&ran, 3, &["with the credentials given"]);
}

/// The import of a source whose host is looked up in files alone: this machine may have no server of names that answers.
fn without_names(place: &Place, command: &Command) -> Command {
    let table = place.text("nsswitch");
    fs::write(&table, "hosts: files\n").unwrap();
    let mut unshared = Command::new("unshare");
    let script = "mount --bind \"$0\" /etc/nsswitch.conf && exec \"$@\"";
    unshared
        .args(["--mount", "sh", "-c", script, &table])
        .arg(command.get_program())
        .args(command.get_args());
    unshared.env_clear();
    for (name, value) in command.get_envs() {
        unshared.env(name, value.unwrap());
    }
    unshared
}

#[test]
fn an_unknown_host_fails_at_once() {
    let place = Place::new();
    let disk = place.text("disk");
    for url in [
        "http://x.invalid/i",
        "https://x.invalid/i",
        "docker://x.invalid/i:1",
        "nbd://x.invalid/i",
        "s3://b/k",
    ] {
        let begun = Instant::now();
        let mut command = importer();
        let ran = soon(&mut without_names(&place, command.args([url, &disk])));
        assert_said(&ran, 3, &["Name or service not known"]);
        // The first failure would be tried again for 30 s.
        assert!(begun.elapsed() < Duration::from_secs(8), "{url}: {:?}", begun.elapsed());
        let said = text(&ran.stderr);
        assert!(!said.contains("retrying"), "{url}: {said}");
        assert!(!Path::new(&disk).exists());
    }
    let pod = support::Pod::new();
    let ran = soon(&mut without_names(&place, &pod.command("http://x.invalid/i", "16Mi")));
    assert_exit(&ran, 1, &text(&ran.stderr));
    assert!(pod.message().contains("Name or service not known"), "{}", pod.message());
}

#[test]
fn a_refused_connection_is_reported_at_the_first_failure() {
    use std::io::{BufRead, BufReader};
    let place = Place::new();
    let disk = place.text("disk");
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let at = format!("127.0.0.1:{port}");
    for url in [format!("http://{at}/i"), format!("nbd://{at}/i"), format!("docker://{at}/i:1")] {
        let begun = Instant::now();
        let mut child = importer().args([&url, &disk]).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.by_ref().map_while(Result::ok).find(|line| line.contains("Connection refused"));
        let told = begun.elapsed();
        let goes_on = child.try_wait().unwrap().is_none();
        child.kill().unwrap();
        child.wait().unwrap();
        let line = line.unwrap_or_else(|| panic!("{url}: nothing was told"));
        assert!(line.contains(&at) && line.contains("retrying"), "{url}: {line}");
        assert!(told < Duration::from_secs(5) && goes_on, "{url}: {told:?}, {goes_on}");
    }
}

#[test]
fn contradictory_arguments_are_wrong_usage() {
    let place = Place::new();
    let (image, disk, missing) = (place.text("image"), place.text("disk"), place.text("missing"));
    let sum = format!("sha256:{}", "0".repeat(64));
    for (arguments, words) in [
        (&["--memory", "0"][..], &["--memory", "between 8Mi and 4Gi"][..]),
        (&["--memory", "1"], &["--memory", "between 8Mi and 4Gi"]),
        (&["--memory", "1Ti"], &["--memory", "between 8Mi and 4Gi"]),
        (&["--window-limit", "0"], &["--window-limit", "between 4Ki and 4Gi"]),
        (&["--window-limit", "1Ei"], &["--window-limit", "between 4Ki and 4Gi"]),
        (&["--size", "0"], &["--size", "between 1 and 7Ei"]),
        (&["--stall", "18446744073709551615"], &["--stall"]),
        (&["--patience", "18446744073709551615"], &["--patience"]),
        (&["--scratch", &missing], &["--scratch", "is no folder"]),
        (&["--scratch", "0"], &["--scratch", "is no folder"]),
        (&["--journal", &image], &["--journal", "is no folder"]),
        (&["--journal", "1"], &["--journal", "is no folder"]),
    ] {
        let ran = import(&[&[image.as_str(), &disk], arguments].concat());
        assert_said(&ran, 2, words);
    }
    for more in [&["--checksum", &sum][..], &["--format", "qcow2"]] {
        let ran = import(&[&["blank", &disk, "--size", "1Mi"], more].concat());
        assert_said(&ran, 2, &["an empty disk has no content"]);
    }
    assert_eq!(names(place.path()), ["image"]);
    for fine in [&["--memory", "8Mi"][..], &["--memory", "64Mi"], &["--patience", "0"]] {
        assert_exit(&import(&[&[image.as_str(), &disk, "--force"], fine].concat()), 0, fine[1]);
    }
}

#[test]
fn a_lost_terminal_stops_an_import_unless_that_was_ruled_out() {
    let place = Place::new();
    let bytes = fs::read(place.path().join("image")).unwrap();
    for (how, code) in [("--default-signal=HUP", Some(129)), ("--ignore-signal=HUP", None)] {
        let disk = place.path().join("disk");
        // env becomes the program: the number of the process stays.
        let mut child = Command::new("env")
            .args([how, env!("CARGO_BIN_EXE_importer"), "-", disk.to_str().unwrap()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(File::create(place.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut input, &bytes).unwrap();
        let begun = Instant::now();
        while fs::metadata(&disk).map_or(0, |meta| std::os::unix::fs::MetadataExt::blocks(&meta)) == 0 {
            assert!(begun.elapsed() < Duration::from_secs(20), "nothing is written");
            std::thread::sleep(Duration::from_millis(10));
        }
        let asked = Instant::now();
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::HUP)
            .unwrap();
        match code {
            Some(code) => {
                assert_eq!(child.wait().unwrap().code(), Some(code));
                assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
                let log = fs::read_to_string(place.path().join("log")).unwrap();
                assert!(log.contains("stopped"), "{log}");
                assert_eq!(names(place.path()), [".disk.import-journal", "disk", "image", "log"]);
            }
            None => {
                std::thread::sleep(Duration::from_millis(300));
                assert!(child.try_wait().unwrap().is_none(), "it was to go on");
                drop(input);
                assert!(child.wait().unwrap().success());
                assert!(fs::read(&disk).unwrap() == bytes);
            }
        }
    }
}
