//! NBD's messages as bytes: numbers, requests, and what a server may answer. Pure, and strict about every length.
//!
//! Source: the NBD protocol, <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>. All numbers are big
//! endian. Not here: sockets, and the order of messages (`connection`).

use std::ops::Range;

/// "NBDMAGIC", the first word of every server.
pub(super) const GREETING: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT": newstyle negotiation, and the start of every option.
pub(super) const NEWSTYLE: u64 = 0x4948_4156_454f_5054;
/// The second word of oldstyle negotiation.
pub(super) const OLDSTYLE: u64 = 0x0000_4202_8186_1253;
/// Starts every reply to an option.
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;

/// Handshake flag: options may be answered.
pub(super) const FIXED_NEWSTYLE: u16 = 1;
/// Handshake flag: no padding after the export's facts.
pub(super) const NO_ZEROES: u16 = 2;
/// Transmission flag: the server keeps no cache per connection.
const CAN_MULTI_CONN: u16 = 1 << 8;

/// Longest string of the protocol.
pub(super) const STRING_MAX: usize = 4096;
/// Longest reply to an option that is read: a name, a description and their lengths.
const REPLY_MAX: u32 = 3 * 4096;
/// Longest error chunk that is read.
pub(super) const ERROR_MAX: u32 = 2 * 4096;
/// Longest answer to a status request: a million extents, the most that nbdkit sends.
pub(super) const STATUS_MAX: u32 = 4 + 8 * (1 << 20);

/// The metadata context for holes and zeroes.
const ALLOCATION: &str = "base:allocation";
/// Information item: block sizes.
const INFO_BLOCK_SIZE: u16 = 3;

/// Options of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Opt {
    ExportName = 1,
    List = 3,
    StartTls = 5,
    Go = 7,
    StructuredReply = 8,
    SetMetaContext = 10,
}

/// A message that breaks the protocol, in words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Nonsense(pub(super) String);

type Parsed<T> = Result<T, Nonsense>;

fn nonsense<T>(what: impl Into<String>) -> Parsed<T> {
    Err(Nonsense(what.into()))
}

/// Takes numbers off the front of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        let Some((front, rest)) = self.0.split_first_chunk::<N>() else {
            return nonsense("a message is too short for its kind");
        };
        self.0 = rest;
        Ok(*front)
    }

    fn u16(&mut self) -> Parsed<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Parsed<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Parsed<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn bytes(&mut self, len: u32) -> Parsed<&'a [u8]> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > self.0.len() {
            return nonsense("a string is longer than its message");
        }
        let (front, rest) = self.0.split_at(len);
        self.0 = rest;
        Ok(front)
    }
}

/// A server's words, safe to show: no control characters, not long.
pub(super) fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|c| if c.is_control() { '·' } else { c }).take(200).collect()
}

/// An option with its data. `data` is at most a few strings of [`STRING_MAX`].
pub(super) fn option(opt: Opt, data: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(16 + data.len());
    message.extend_from_slice(&NEWSTYLE.to_be_bytes());
    message.extend_from_slice(&(opt as u32).to_be_bytes());
    message.extend_from_slice(&length(data).to_be_bytes());
    message.extend_from_slice(data);
    message
}

fn length(bytes: &[u8]) -> u32 {
    // Callers pass strings of at most STRING_MAX bytes.
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// Data of [`Opt::SetMetaContext`]: only `base:allocation`.
pub(super) fn allocation_of(export: &str) -> Vec<u8> {
    let mut data = string(export);
    data.extend_from_slice(&1u32.to_be_bytes());
    data.extend(string(ALLOCATION));
    data
}

/// Data of [`Opt::Go`]: the export, and that we keep to its block sizes.
pub(super) fn go(export: &str) -> Vec<u8> {
    let mut data = string(export);
    data.extend_from_slice(&1u16.to_be_bytes());
    data.extend_from_slice(&INFO_BLOCK_SIZE.to_be_bytes());
    data
}

fn string(text: &str) -> Vec<u8> {
    let mut data = length(text.as_bytes()).to_be_bytes().to_vec();
    data.extend_from_slice(text.as_bytes());
    data
}

/// Type of a reply to an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Ack,
    /// An export's name.
    Server(String),
    /// A fact of the export.
    Info(Info),
    /// The context that was selected.
    MetaContext(u32),
    /// Refused, with the server's words.
    Error(OptError, String),
}

/// Facts in answer to [`Opt::Go`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Info {
    Export {
        size: u64,
        flags: u16,
    },
    BlockSize(BlockSize),
    /// A name, a description, or what came later.
    Other,
}

/// Why an option is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OptError {
    Unsupported,
    Policy,
    TlsRequired,
    UnknownExport,
    Shutdown,
    Other(u32),
}

/// Length of the head of a reply to an option.
pub(super) const REPLY_HEAD: usize = 20;

/// The head of a reply to `opt`: its type and the bytes that follow, at most 12 KiB.
pub(super) fn reply_head(head: &[u8; REPLY_HEAD], opt: Opt) -> Parsed<(u32, usize)> {
    let mut fields = Fields(head);
    let magic = fields.u64()?;
    if magic != OPTION_REPLY {
        return nonsense(format!("a reply to an option starts with {magic:#x}"));
    }
    let to = fields.u32()?;
    if to != opt as u32 {
        return nonsense(format!("a reply is to option {to} instead of {}", opt as u32));
    }
    let kind = fields.u32()?;
    let len = fields.u32()?;
    if len > REPLY_MAX {
        return nonsense(format!("a reply to an option claims {len} bytes"));
    }
    Ok((kind, usize::try_from(len).unwrap_or(usize::MAX)))
}

/// A reply's meaning.
pub(super) fn reply(kind: u32, data: &[u8]) -> Parsed<Reply> {
    let mut fields = Fields(data);
    Ok(match kind {
        1 if data.is_empty() => Reply::Ack,
        2 => {
            let len = fields.u32()?;
            Reply::Server(printable(fields.bytes(len)?))
        }
        3 => Reply::Info(match fields.u16()? {
            0 if data.len() == 12 => Info::Export { size: fields.u64()?, flags: fields.u16()? },
            INFO_BLOCK_SIZE if data.len() == 14 => {
                Info::BlockSize(BlockSize::checked(fields.u32()?, fields.u32()?, fields.u32()?)?)
            }
            item @ (0 | INFO_BLOCK_SIZE) => {
                return nonsense(format!("information {item} has {} bytes", data.len()));
            }
            _ => Info::Other,
        }),
        4 => {
            let id = fields.u32()?;
            if fields.0 != ALLOCATION.as_bytes() {
                return nonsense(format!("the context \"{}\" was not asked for", printable(fields.0)));
            }
            Reply::MetaContext(id)
        }
        _ if kind & (1 << 31) != 0 => Reply::Error(
            match kind & !(1 << 31) {
                1 => OptError::Unsupported,
                2 => OptError::Policy,
                5 => OptError::TlsRequired,
                6 => OptError::UnknownExport,
                7 => OptError::Shutdown,
                other => OptError::Other(other),
            },
            printable(data),
        ),
        _ => return nonsense(format!("a reply to an option is of type {kind} with {} bytes", data.len())),
    })
}

/// Sizes of requests that the server takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockSize {
    /// Offsets and lengths are multiples of it; a power of two, at most 64 KiB.
    pub(super) min: u32,
    /// Whole ones of these are fast.
    pub(super) preferred: u32,
    /// Longest read.
    pub(super) max: u32,
}

impl Default for BlockSize {
    /// The protocol's defaults when the server sends none.
    fn default() -> Self {
        Self { min: 1, preferred: 4096, max: 32 << 20 }
    }
}

impl BlockSize {
    fn checked(min: u32, preferred: u32, max: u32) -> Parsed<Self> {
        let good = min.is_power_of_two()
            && min <= 1 << 16
            && preferred.is_power_of_two()
            && preferred >= min
            && max >= min;
        if !good {
            return nonsense(format!("block sizes are {min}, {preferred} and {max}"));
        }
        Ok(Self { min, preferred, max })
    }

    /// The length of our requests: near `wanted`, whole preferred blocks if the longest read allows it.
    pub(super) fn request(self, wanted: u32) -> u32 {
        let most = wanted.max(self.min).min(self.max);
        let unit = if self.preferred <= most { self.preferred } else { self.min };
        most / unit * unit
    }
}

/// Properties of an export once it is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Export {
    /// Bytes.
    pub(super) size: u64,
    /// Several connections see the same.
    pub(super) multi_conn: bool,
    pub(super) block: BlockSize,
}

impl Export {
    /// Takes the server's numbers; sizes that no file can have are refused.
    pub(super) fn checked(size: u64, flags: u16, block: BlockSize) -> Parsed<Self> {
        if i64::try_from(size).is_err() {
            return nonsense(format!("the export's size is {size}"));
        }
        Ok(Self { size, multi_conn: flags & CAN_MULTI_CONN != 0, block })
    }
}

/// Facts in answer to [`Opt::ExportName`].
pub(super) fn export_facts(data: &[u8; 10]) -> Parsed<Export> {
    let mut fields = Fields(data);
    Export::checked(fields.u64()?, fields.u16()?, BlockSize::default())
}

/// Requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Command {
    Read = 0,
    Disconnect = 2,
    BlockStatus = 7,
}

/// Length of a request.
pub(super) const REQUEST: usize = 28;

/// A request without flags.
pub(super) fn request(command: Command, cookie: u64, offset: u64, len: u32) -> [u8; REQUEST] {
    let mut message = [0; REQUEST];
    message[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
    message[6..8].copy_from_slice(&(command as u16).to_be_bytes());
    message[8..16].copy_from_slice(&cookie.to_be_bytes());
    message[16..24].copy_from_slice(&offset.to_be_bytes());
    message[24..].copy_from_slice(&len.to_be_bytes());
    message
}

/// The head of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// The only message of the answer; the data of a read follows when there is no error.
    Simple { cookie: u64, error: u32 },
    /// One of several messages; the length of its payload follows as 4 bytes.
    Structured { cookie: u64, done: bool, kind: u16 },
}

/// Length of what both heads have.
pub(super) const HEAD: usize = 16;

/// The head of an answer.
pub(super) fn head(bytes: &[u8; HEAD]) -> Parsed<Head> {
    let mut fields = Fields(bytes);
    match fields.u32()? {
        0x6744_6698 => {
            let error = fields.u32()?;
            Ok(Head::Simple { error, cookie: fields.u64()? })
        }
        0x668e_33ef => {
            let flags = fields.u16()?;
            let kind = fields.u16()?;
            Ok(Head::Structured { done: flags & 1 != 0, kind, cookie: fields.u64()? })
        }
        magic => nonsense(format!("an answer starts with {magic:#x}")),
    }
}

/// Types of structured answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    None,
    Data,
    Hole,
    Status,
    Error,
}

/// The type of a structured answer, its length held against what the type allows.
pub(super) fn kind(kind: u16, len: u32, done: bool) -> Parsed<Kind> {
    let (found, good) = match kind {
        0 => (Kind::None, len == 0 && done),
        1 => (Kind::Data, len > 8),
        2 => (Kind::Hole, len == 12),
        5 => (Kind::Status, (12..=STATUS_MAX).contains(&len) && len % 8 == 4),
        _ if kind & (1 << 15) != 0 => (Kind::Error, (6..=ERROR_MAX).contains(&len)),
        _ => return nonsense(format!("an answer is of type {kind}")),
    };
    if good { Ok(found) } else { nonsense(format!("an answer of type {kind} claims {len} bytes")) }
}

/// An error that a server reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerError {
    pub(super) code: u32,
    pub(super) words: String,
}

impl ServerError {
    /// From an error chunk.
    pub(super) fn parse(data: &[u8]) -> Parsed<Self> {
        let mut fields = Fields(data);
        let code = fields.u32()?;
        let len = u32::from(fields.u16()?);
        Ok(Self { code, words: printable(fields.bytes(len)?) })
    }

    /// The error's name in the protocol.
    pub(super) fn name(&self) -> String {
        let known = match self.code {
            1 => "EPERM (operation not permitted)",
            5 => "EIO (input/output error)",
            12 => "ENOMEM (out of memory)",
            22 => "EINVAL (invalid argument)",
            28 => "ENOSPC (no space left)",
            75 => "EOVERFLOW (value too large)",
            95 => "ENOTSUP (operation not supported)",
            108 => "ESHUTDOWN (server is shutting down)",
            other => return format!("error {other}"),
        };
        known.to_owned()
    }
}

/// A hole in the answer to a read: its offset and length.
pub(super) fn hole(data: &[u8; 12]) -> Parsed<(u64, u32)> {
    let mut fields = Fields(data);
    Ok((fields.u64()?, fields.u32()?))
}

/// Holes shorter than this are read as data: asking for what is around them costs more, and it bounds what is kept of
/// a status.
const HOLE_MIN: u64 = 64 << 10;

/// The extents of a status, folded into ranges that may hold data as they arrive.
#[derive(Debug)]
pub(super) struct Status {
    /// The request.
    asked: Range<u64>,
    /// Up to where it is known.
    pub(super) known: u64,
    /// Ranges that may hold data, ascending.
    pub(super) data: Vec<Range<u64>>,
}

impl Status {
    pub(super) fn new(asked: Range<u64>) -> Self {
        Self { known: asked.start, data: Vec::new(), asked }
    }

    /// Whether no extent came.
    pub(super) fn is_empty(&self) -> bool {
        self.known == self.asked.start
    }

    /// Adds descriptors of 8 bytes each. The last one may reach past what was asked.
    ///
    /// Only `NBD_STATE_ZERO` counts: a hole alone has no promised content, and is read as any other reader would.
    pub(super) fn add(&mut self, descriptors: &[u8]) -> Parsed<()> {
        let mut fields = Fields(descriptors);
        while !fields.0.is_empty() {
            let len = u64::from(fields.u32()?);
            let zero = fields.u32()? & 2 != 0;
            if len == 0 {
                return nonsense("a status has an extent of length zero");
            }
            if self.known >= self.asked.end {
                return nonsense("a status has more extents than were asked for");
            }
            let end = self.known.saturating_add(len).min(self.asked.end);
            if !zero {
                match self.data.last_mut() {
                    Some(last) if self.known - last.end < HOLE_MIN => last.end = end,
                    Some(_) | None => self.data.push(self.known..end),
                }
            }
            self.known = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_keep_to_the_block_sizes() {
        for (min, preferred, max, wanted, expected) in [
            (1, 4096, 32 << 20, 512 << 10, 512 << 10),
            (512, 4096, 8192, 512 << 10, 8192),
            (512, 4096, 1536, 512 << 10, 1536),
            (4096, 65536, u32::MAX, 512 << 10, 512 << 10),
            (1, 1 << 20, 32 << 20, 512 << 10, 512 << 10),
            (65536, 65536, 65536, 4096, 65536),
            (1, 512, 700, 512 << 10, 512),
        ] {
            let block = BlockSize::checked(min, preferred, max).unwrap();
            assert_eq!(block.request(wanted), expected, "{block:?}");
        }
        for (min, preferred, max) in [
            (0, 4096, 4096),
            (3, 4096, 4096),
            (4096, 512, 8192),
            (512, 4096, 100),
            (1 << 17, 1 << 17, 1 << 20),
        ] {
            assert!(BlockSize::checked(min, preferred, max).is_err(), "{min} {preferred} {max}");
        }
    }

    fn descriptors(extents: &[(u32, u32)]) -> Vec<u8> {
        extents.iter().flat_map(|(len, flags)| [len.to_be_bytes(), flags.to_be_bytes()]).flatten().collect()
    }

    type Pairs<'a, T> = &'a [(T, T)];

    #[test]
    fn statuses_become_ranges() {
        let big = 1 << 20;
        let whole = 10..10 + 4 * u64::from(big);
        #[rustfmt::skip]
        let table: [(Pairs<'_, u32>, Pairs<'_, u64>, Option<u64>); 8] = [
            (&[(big, 0), (big, 3), (big, 0)],   &[(10, 1_048_586), (2_097_162, 3_145_738)], Some(3_145_738)),
            (&[(u32::MAX, 3)],                  &[],                                        Some(whole.end)),
            (&[(u32::MAX, 0)],                  &[(10, 4_194_314)],                         Some(whole.end)),
            (&[(big, 1)],                       &[(10, 1_048_586)],                         Some(1_048_586)),
            (&[(512, 0), (512, 3), (512, 0)],   &[(10, 1546)],                              Some(1546)),
            (&[(512, 0), (65536, 3), (512, 0)], &[(10, 522), (66_058, 66_570)],             Some(66_570)),
            (&[(big, 0), (0, 0)],               &[],                                        None),
            (&[(u32::MAX, 0), (512, 0)],        &[],                                        None),
        ];
        for (extents, data, known) in table {
            let mut status = Status::new(whole.clone());
            let result = status.add(&descriptors(extents));
            assert_eq!(result.is_ok(), known.is_some(), "{extents:?}");
            if let Some(known) = known {
                let found: Vec<_> = status.data.iter().map(|range| (range.start, range.end)).collect();
                assert_eq!((found.as_slice(), status.known), (data, known), "{extents:?}");
            }
        }
    }

    #[test]
    fn lengths_are_bounded() {
        let head = |kind: u32, len: u32| {
            let mut bytes = [0; REPLY_HEAD];
            bytes[..8].copy_from_slice(&OPTION_REPLY.to_be_bytes());
            bytes[8..12].copy_from_slice(&7u32.to_be_bytes());
            bytes[12..16].copy_from_slice(&kind.to_be_bytes());
            bytes[16..].copy_from_slice(&len.to_be_bytes());
            bytes
        };
        assert_eq!(reply_head(&head(1, 0), Opt::Go), Ok((1, 0)));
        assert!(reply_head(&head(1, 0), Opt::List).is_err());
        assert!(reply_head(&head(1, u32::MAX), Opt::Go).is_err());
        for (number, len, done, good) in [
            (0, 0, true, true),
            (0, 0, false, false),
            (0, 1, true, false),
            (1, 8, true, false),
            (1, u32::MAX, true, true),
            (2, 12, false, true),
            (2, 13, false, false),
            (5, 4, true, false),
            (5, 12, true, true),
            (5, 13, true, false),
            (5, u32::MAX, true, false),
            (0x8001, 5, true, false),
            (0x8001, 6, true, true),
            (0x8001, u32::MAX, true, false),
            (0xffff, 6, true, true),
            (3, 6, true, false),
        ] {
            assert_eq!(kind(number, len, done).is_ok(), good, "{number} {len} {done}");
        }
        assert!(ServerError::parse(&[0, 0, 0, 5, 0, 9, b'x']).is_err());
        assert_eq!(ServerError::parse(&[0, 0, 0, 5, 0, 1, b'\n']).unwrap().words, "·");
        assert!(Export::checked(u64::MAX, 0, BlockSize::default()).is_err());
    }

    #[test]
    fn malformed_replies_are_rejected() {
        let mut export = vec![0, 0];
        export.extend_from_slice(&9u64.to_be_bytes());
        export.extend_from_slice(&256u16.to_be_bytes());
        assert_eq!(reply(3, &export), Ok(Reply::Info(Info::Export { size: 9, flags: 256 })));
        for (kind, data) in [
            (1, &b"x"[..]),
            (2, &[0, 0, 0, 9, b'x']),
            (3, &[]),
            (3, &[0, 0, 1]),
            (3, &[0, 3, 1]),
            (4, b"\0\0\0\x01base:other"),
            (4, b"\0"),
            (9, b""),
        ] {
            assert!(reply(kind, data).is_err(), "{kind} {data:?}");
        }
        let unknown = reply(0x8000_0006, b"no such").unwrap();
        assert_eq!(unknown, Reply::Error(OptError::UnknownExport, "no such".into()));
    }
}
