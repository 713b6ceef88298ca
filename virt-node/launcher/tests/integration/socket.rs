//! The launcher's socket: invalid messages, slow readers, excess writers; other clients are not delayed.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use api::launcher::{Answer, Call, FRAME_MAX, Message, RefusedKind, Request, SOCKET, State, frame};

use crate::support::running::{self, FLOODS, HALTS, Launcher, TIMEOUT, eventually};

/// Neither end waits for the other for ever.
fn patient(stream: &UnixStream) {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
}

fn raw(launcher: &Launcher) -> UnixStream {
    let stream = eventually("the socket", || UnixStream::connect(launcher.folder().join(SOCKET)).ok());
    patient(&stream);
    stream
}

/// The answer to these bytes, until the connection ends or a message is complete.
fn read_message(stream: &mut UnixStream) -> Option<Message> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).ok()?;
    let mut json = vec![0; u32::from_be_bytes(head) as usize];
    stream.read_exact(&mut json).unwrap();
    Some(serde_json::from_slice(&json).unwrap())
}

fn framed(json: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(json.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(json);
    bytes
}

/// Peak of the worker's own memory in KiB.
fn peak(launcher: &Launcher) -> u64 {
    let line = running::status_line(launcher.worker(), "VmHWM");
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn invalid_messages_are_refused_and_harm_no_other_client() {
    let launcher = Launcher::new();
    for (bytes, wanted) in [
        (
            framed(b"{\"version\": 9, \"id\": 4, \"request\": \"status\"}"),
            "message of version 9; this program speaks versions [1, 2]",
        ),
        (framed(b"{\"version\": 1, \"id\": 4, \"request\": \"dance\"}"), "unknown variant"),
        (framed(b"\xff\xfe"), "not a message"),
        (framed(b""), "not a message"),
        (framed(&b"[".repeat(100_000)), "not a message"),
        (vec![0xff; 4], "bytes is the limit"),
    ] {
        let mut stream = raw(&launcher);
        stream.write_all(&bytes).unwrap();
        let Some(Message::Refused { kind: RefusedKind::Invalid, message, .. }) = read_message(&mut stream)
        else {
            panic!("{wanted}")
        };
        assert!(message.contains(wanted), "{message}");
    }
    // Half a frame, and nothing after it.
    let mut half = raw(&launcher);
    half.write_all(&[0, 0, 1, 0, b'{']).unwrap();
    drop(half);
    assert_eq!(launcher.status().state, State::Waiting);
}

#[test]
fn clients_of_either_version_are_served() {
    let launcher = Launcher::new();
    // One from before version agreement sends a call at once.
    let mut old = raw(&launcher);
    old.write_all(&framed(b"{\"version\": 1, \"id\": 4, \"request\": \"status\"}")).unwrap();
    let Some(Message::Answer { id: 4, answer: Answer::Status(_) }) = read_message(&mut old) else { panic!() };
    let mut newer = raw(&launcher);
    newer.write_all(&framed(b"{\"versions\": [2, 3], \"name\": \"virt-node 9\"}")).unwrap();
    let Some(Message::Hello { versions }) = read_message(&mut newer) else { panic!() };
    assert_eq!(versions, [1, 2]);
    newer.write_all(&framed(b"{\"version\": 2, \"id\": 1, \"request\": \"status\", \"more\": 1}")).unwrap();
    let Some(Message::Answer { id: 1, answer: Answer::Status(_) }) = read_message(&mut newer) else {
        panic!()
    };
}

#[test]
fn calls_are_answered_in_order_without_waiting_for_one_another() {
    let launcher = Launcher::new();
    let mut stream = raw(&launcher);
    let calls: Vec<u8> =
        (1..=50).flat_map(|id| frame(&Call::new(1, id, Request::Status).unwrap()).unwrap()).collect();
    stream.write_all(&calls).unwrap();
    for wanted in 1..=50 {
        let Some(Message::Answer { id, answer: Answer::Status(_) }) = read_message(&mut stream) else {
            panic!()
        };
        assert_eq!(id, wanted);
    }
}

#[test]
fn slow_readers_are_disconnected_and_block_no_other_client() {
    let launcher = Launcher::new();
    launcher.launch(&launcher.document(HALTS));
    let mut deaf = raw(&launcher);
    deaf.write_all(&frame(&Call::new(1, 1, Request::Watch).unwrap()).unwrap()).unwrap();
    let Some(Message::Answer { .. }) = read_message(&mut deaf) else { panic!() };
    let begun = Instant::now();
    let mut cut = false;
    for _ in 0..3000 {
        launcher.ask(Request::Pause).unwrap();
        launcher.ask(Request::Unpause).unwrap();
        // The disconnected socket is an error to its writer.
        if deaf.write_all(&frame(&Call::new(1, 2, Request::Status).unwrap()).unwrap()).is_err() {
            cut = true;
            break;
        }
    }
    assert!(cut, "events wait for it without end");
    println!("cut off after {:?}", begun.elapsed());
    assert_eq!(launcher.status().state, State::Running);
}

#[test]
fn a_writer_as_fast_as_it_can_and_a_guest_that_floods_take_bounded_memory() {
    let launcher = Launcher::new();
    launcher.launch(&launcher.document(FLOODS));
    launcher.until_serial("xxxx");
    let before = peak(&launcher);
    let socket = launcher.folder().join(SOCKET);
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let socket = socket.clone();
            std::thread::spawn(move || {
                // Whitespace is no call, however much of it comes.
                let most = framed(&vec![b' '; FRAME_MAX]);
                let until = Instant::now() + Duration::from_secs(5);
                let mut sent = 0;
                while Instant::now() < until {
                    let Ok(mut stream) = UnixStream::connect(&socket) else { continue };
                    patient(&stream);
                    while stream.write_all(&most).is_ok() && read_message(&mut stream).is_some() {
                        sent += most.len();
                        if Instant::now() > until {
                            break;
                        }
                    }
                }
                sent
            })
        })
        .collect();
    let mut slowest = Duration::ZERO;
    while !writers.iter().all(std::thread::JoinHandle::is_finished) {
        let begun = Instant::now();
        assert_eq!(launcher.status().state, State::Running);
        slowest = slowest.max(begun.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    let sent: usize = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
    assert!(sent > FRAME_MAX, "{sent}");
    // Four clients that send as much as they may hold one such frame at a time.
    let grown = (peak(&launcher) - before) / 1024;
    println!(
        "{} MB sent; the worker grew by {grown} MiB at most; slowest status {slowest:?}",
        sent / 1_000_000
    );
    assert!(grown < 100, "{grown} MiB");
    assert!(slowest < Duration::from_secs(20), "{slowest:?}");
}

#[test]
fn of_too_many_clients_the_one_idle_longest_is_disconnected() {
    let launcher = Launcher::new();
    launcher.until(State::Waiting);
    let served = || {
        let mut stream = raw(&launcher);
        stream.write_all(&frame(&Call::new(1, 1, Request::Status).unwrap()).unwrap()).ok()?;
        read_message(&mut stream).map(|_| stream)
    };
    let mut all: Vec<UnixStream> = (0..32).map(|_| eventually("an answer", served)).collect();
    let newest = eventually("an answer", served);
    assert!(read_message(&mut all[0]).is_none(), "the connection ends");
    drop((all, newest));
    launcher.until(State::Waiting);
}

/// The 33rd client was closed, whatever the others did.
#[test]
fn idle_clients_and_unfinished_frames_keep_no_client_out() {
    let launcher = Launcher::new();
    let mut watching = raw(&launcher);
    watching.write_all(&frame(&Call::new(1, 1, Request::Watch).unwrap()).unwrap()).unwrap();
    let Some(Message::Answer { id: 1, .. }) = read_message(&mut watching) else { panic!("no answer") };
    let count = if std::env::var_os("FERROVIRT_SOAK").is_some() { 1256 } else { 200 };
    let mut open = Vec::new();
    for number in 0..count {
        let mut stream = UnixStream::connect(launcher.folder().join(SOCKET)).unwrap();
        if number % 4 == 0 {
            // Half of a frame; the worker may have disconnected it.
            drop(stream.write_all(&[0, 0, 16, 0, b'{']));
        }
        open.push(stream);
    }
    for _ in 0..5 {
        let begun = Instant::now();
        assert_eq!(launcher.status().state, State::Waiting);
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
    // A client that watches is not idle.
    watching.write_all(&frame(&Call::new(1, 2, Request::Status).unwrap()).unwrap()).unwrap();
    let Some(Message::Answer { id: 2, answer: Answer::Status(_) }) = read_message(&mut watching) else {
        panic!("the client that watches was disconnected")
    };
}
