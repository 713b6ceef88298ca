//! A server of ours, which does one thing wrong and the rest right.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A server's fault or peculiarity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Nothing wrong.
    Right,
    /// Nothing wrong, but all answers in pieces and in any order.
    Shuffled,
    /// The connection ends after so many bytes.
    Cut(usize),
    SilentHandshake,
    Silent,
    ListedAndRefused,
    WrongOptionMagic,
    WrongOption,
    HugeOptionReply,
    EndlessOptionReplies,
    NoSize,
    HugeSize,
    BadBlockSizes,
    WrongContextName,
    WrongMagic,
    UnknownCookie,
    AnsweredTwice,
    HugeData,
    DataBefore,
    DataBehind,
    DataTwice,
    DataShort,
    DataForStatus,
    HoleOfNothing,
    HoleTooLong,
    HoleWrongLength,
    SimpleForRead,
    UnknownType,
    NoneWithData,
    NoneNotDone,
    ErrorLies,
    HugeError,
    ShutsDown,
    InvalidArgument,
    StatusOfNothing,
    StatusTooMany,
    StatusHuge,
    StatusOdd,
    StatusEmpty,
    StatusWrongContext,
}

/// The socket of a server, which may be cut.
struct CutSocket {
    socket: TcpStream,
    left: usize,
}

impl CutSocket {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let n = bytes.len().min(self.left);
        self.socket.write_all(&bytes[..n])?;
        self.left -= n;
        if n < bytes.len() || self.left == 0 {
            drop(self.socket.shutdown(std::net::Shutdown::Both));
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    }

    fn read_array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.socket.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        let mut message = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
        message.extend(option.to_be_bytes());
        message.extend(kind.to_be_bytes());
        message.extend((data.len() as u32).to_be_bytes());
        message.extend(data);
        self.send(&message)
    }
}

/// A structured answer.
fn chunk(cookie: u64, kind: u16, done: bool, claimed: u32, payload: &[u8]) -> Vec<u8> {
    let mut message = 0x668e_33ef_u32.to_be_bytes().to_vec();
    message.extend(u16::from(done).to_be_bytes());
    message.extend(kind.to_be_bytes());
    message.extend(cookie.to_be_bytes());
    message.extend(claimed.to_be_bytes());
    message.extend(payload);
    message
}

fn data_chunk(cookie: u64, done: bool, offset: u64, data: &[u8]) -> Vec<u8> {
    let payload = [&offset.to_be_bytes()[..], data].concat();
    chunk(cookie, 1, done, payload.len() as u32, &payload)
}

fn status_chunk(cookie: u64, context: u32, extents: &[(u32, u32)]) -> Vec<u8> {
    let mut payload = context.to_be_bytes().to_vec();
    for (len, flags) in extents {
        payload.extend(len.to_be_bytes());
        payload.extend(flags.to_be_bytes());
    }
    chunk(cookie, 5, true, payload.len() as u32, &payload)
}

const CONTEXT: u32 = 7;

/// A server of `disk` on loopback; gives its address and the number of its connections.
pub(crate) fn server(disk: &[u8], way: Way) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("nbd://{}/e", listener.local_addr().unwrap());
    let connections = Arc::<AtomicUsize>::default();
    let (disk, counted) = (Arc::new(disk.to_vec()), connections.clone());
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
            let Ok(socket) = socket else { return };
            socket.set_nodelay(true).unwrap();
            let disk = disk.clone();
            std::thread::spawn(move || {
                let left = if let Way::Cut(left) = way { left } else { usize::MAX };
                let mut line = CutSocket { socket, left };
                if way == Way::SilentHandshake {
                    std::thread::sleep(Duration::from_secs(3));
                }
                // It ends when the client has enough, or by its own fault.
                let _ =
                    handshake(&mut line, disk.len() as u64, way).and_then(|()| serve(&mut line, &disk, way));
            });
        }
    });
    (url, connections)
}

fn handshake(line: &mut CutSocket, size: u64, way: Way) -> io::Result<()> {
    line.send(b"NBDMAGICIHAVEOPT\0\x03")?;
    line.read_array::<4>()?;
    loop {
        let head = line.read_array::<16>()?;
        let option = u32::from_be_bytes(head[8..12].try_into().unwrap());
        let len = u32::from_be_bytes(head[12..].try_into().unwrap());
        io::copy(&mut (&line.socket).take(u64::from(len)), &mut io::sink())?;
        match (option, way) {
            (8, Way::WrongOptionMagic) => line.send(&[0xab; 20])?,
            (8, Way::WrongOption) => line.reply(7, 1, &[])?,
            (8, Way::HugeOptionReply) => {
                let mut message = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
                message.extend([0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]);
                line.send(&message)?;
            }
            (8, Way::EndlessOptionReplies) => loop {
                line.reply(8, 2, b"\0\0\0\x01x")?;
            },
            (8, _) => line.reply(8, 1, &[])?,
            (10, Way::WrongContextName) => line.reply(10, 4, b"\0\0\0\x07base:other")?,
            (10, _) => {
                line.reply(10, 4, b"\0\0\0\x07base:allocation")?;
                line.reply(10, 1, &[])?;
            }
            (7, Way::ListedAndRefused) => line.reply(7, 0x8000_0006, b"not now")?,
            (3, Way::ListedAndRefused) => {
                line.reply(3, 2, b"\0\0\0\0")?;
                line.reply(3, 2, b"\0\0\0\x01e")?;
                line.reply(3, 1, &[])?;
            }
            (7, _) => {
                let size = if way == Way::HugeSize { u64::MAX } else { size };
                if way != Way::NoSize {
                    let facts = [&[0, 0][..], &size.to_be_bytes(), &[1, 3]].concat();
                    line.reply(7, 3, &facts)?;
                }
                let sizes: [u32; 3] = if way == Way::BadBlockSizes { [3, 0, 0] } else { [1, 4096, 1 << 25] };
                let sizes: Vec<u8> = sizes.iter().flat_map(|size| size.to_be_bytes()).collect();
                line.reply(7, 3, &[&[0, 3][..], &sizes].concat())?;
                line.reply(7, 1, &[])?;
                return Ok(());
            }
            _ => line.reply(option, 0x8000_0001, &[])?,
        }
    }
}

/// A request: command, cookie, offset, length.
type Request = (u16, u64, u64, u32);

fn request(line: &mut CutSocket) -> io::Result<Request> {
    let head = line.read_array::<28>()?;
    assert_eq!(head[..4], 0x2560_9513_u32.to_be_bytes());
    let number = |range: Range<usize>| head[range].iter().fold(0u64, |n, &b| n << 8 | u64::from(b));
    Ok((number(6..8) as u16, number(8..16), number(16..24), number(24..28) as u32))
}

fn serve(line: &mut CutSocket, disk: &[u8], way: Way) -> io::Result<()> {
    let mut seed = 1u64;
    loop {
        let mut requests = vec![request(line)?];
        if way == Way::Shuffled {
            // As many as come.
            line.socket.set_nonblocking(true)?;
            std::thread::sleep(Duration::from_millis(3));
            while requests.len() < 64 && line.socket.peek(&mut [0; 28]).is_ok_and(|n| n == 28) {
                requests.push(request(line)?);
            }
            line.socket.set_nonblocking(false)?;
        }
        let mut messages = Vec::new();
        for (command, cookie, offset, len) in requests {
            let end = offset + u64::from(len);
            assert!(end <= disk.len() as u64, "{offset} {len}");
            let data = &disk[offset as usize..end as usize];
            match command {
                0 if way == Way::Shuffled => messages.extend(pieces(cookie, offset, data, &mut seed)),
                0 => line.send(&wrong_read(way, cookie, offset, data))?,
                7 => line.send(&wrong_status(way, cookie, len))?,
                _ => return Ok(()),
            }
        }
        for message in shuffled(messages, &mut seed) {
            line.send(&message)?;
        }
    }
}

fn next(seed: &mut u64, below: usize) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize % below
}

/// An answer in pieces, zeroes as holes; the last one is the end.
fn pieces(cookie: u64, offset: u64, data: &[u8], seed: &mut u64) -> Vec<(u64, Vec<u8>)> {
    let mut messages = Vec::new();
    let mut at = 0;
    while at < data.len() {
        let len = (1 + next(seed, 40_000)).min(data.len() - at);
        let piece = &data[at..at + len];
        let place = offset + at as u64;
        messages.push((
            cookie,
            if piece.iter().all(|&b| b == 0) {
                chunk(cookie, 2, false, 12, &[&place.to_be_bytes()[..], &(len as u32).to_be_bytes()].concat())
            } else {
                data_chunk(cookie, false, place, piece)
            },
        ));
        at += len;
    }
    messages.push((cookie, chunk(cookie, 0, true, 0, &[])));
    messages
}

/// Any order, but the end of each answer last.
fn shuffled(mut messages: Vec<(u64, Vec<u8>)>, seed: &mut u64) -> Vec<Vec<u8>> {
    for i in (1..messages.len()).rev() {
        messages.swap(i, next(seed, i + 1));
    }
    let is_end = |message: &(u64, Vec<u8>)| message.1[5] == 1;
    // An end that comes before a piece of its answer changes places with it.
    for i in 0..messages.len() {
        if is_end(&messages[i])
            && let Some(last) = (i + 1..messages.len()).rev().find(|&j| messages[j].0 == messages[i].0)
        {
            messages.swap(i, last);
        }
    }
    messages.into_iter().map(|(_, message)| message).collect()
}

fn wrong_read(way: Way, cookie: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    let right = data_chunk(cookie, true, offset, data);
    let hole = |at: u64, len: u32| [&at.to_be_bytes()[..], &len.to_be_bytes()].concat();
    let len = data.len() as u32;
    match way {
        Way::Silent => Vec::new(),
        Way::WrongMagic => vec![0x66; right.len()],
        Way::UnknownCookie => data_chunk(cookie + 1000, true, offset, data),
        Way::AnsweredTwice => [&right[..], &right].concat(),
        Way::HugeData => chunk(cookie, 1, true, u32::MAX, &right[20..]),
        Way::DataBefore => data_chunk(cookie, true, offset.wrapping_sub(1), data),
        Way::DataBehind => data_chunk(cookie, true, offset + 1, data),
        Way::DataTwice => {
            [data_chunk(cookie, false, offset, &data[..1]), data_chunk(cookie, false, offset, data)].concat()
        }
        Way::DataShort => data_chunk(cookie, true, offset, &data[..data.len() - 1]),
        Way::HoleOfNothing => chunk(cookie, 2, false, 12, &hole(offset, 0)),
        Way::HoleTooLong => chunk(cookie, 2, true, 12, &hole(offset, u32::MAX)),
        Way::HoleWrongLength => chunk(cookie, 2, true, 16, &[0; 16]),
        Way::SimpleForRead => {
            let mut message = 0x6744_6698_u32.to_be_bytes().to_vec();
            message.extend(0u32.to_be_bytes());
            message.extend(cookie.to_be_bytes());
            [&message[..], data].concat()
        }
        Way::UnknownType => chunk(cookie, 99, true, len, data),
        Way::NoneWithData => chunk(cookie, 0, true, len, data),
        Way::NoneNotDone => chunk(cookie, 0, false, 0, &[]),
        Way::ErrorLies => chunk(cookie, 0x8001, true, 6, &[0, 0, 0, 5, 0xff, 0xff]),
        Way::HugeError => chunk(cookie, 0x8001, true, u32::MAX, &[0; 64]),
        Way::ShutsDown => chunk(cookie, 0x8001, true, 9, b"\0\0\0\x6c\0\x03bye"),
        Way::InvalidArgument => chunk(cookie, 0x8002, true, 18, b"\0\0\0\x16\0\x04why?\0\0\0\0\0\0\0\0"),
        _ => right,
    }
}

fn wrong_status(way: Way, cookie: u64, len: u32) -> Vec<u8> {
    match way {
        Way::DataForStatus => data_chunk(cookie, true, 0, b"data"),
        Way::StatusOfNothing => status_chunk(cookie, CONTEXT, &[(1, 0), (0, 3)]),
        Way::StatusTooMany => status_chunk(cookie, CONTEXT, &[(len, 3), (1, 3)]),
        Way::StatusHuge => chunk(cookie, 5, true, u32::MAX - 3, &[0, 0, 0, 7, 0, 0, 0, 9]),
        Way::StatusOdd => chunk(cookie, 5, true, 13, &[0; 13]),
        Way::StatusEmpty => chunk(cookie, 0, true, 0, &[]),
        Way::StatusWrongContext => status_chunk(cookie, CONTEXT + 1, &[(len, 3)]),
        _ => status_chunk(cookie, CONTEXT, &[(len, 0)]),
    }
}
