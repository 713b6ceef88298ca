//! The least HTTP/2 (RFC 9113) that answers unary gRPC calls whatever their authority is: bytes in, bytes out.
//!
//! Why it exists: grpc-go, and so the kubelet, sends the path of the dialled socket as `:authority`, percent-encoded
//! (`%2Fvar%2Flib…`). The h2 crate, below tonic, answers PROTOCOL_ERROR to it and has no switch for that; there is nothing
//! above it that could help. It can go when h2 takes such an authority, or the kubelet sends another one.
//!
//! Header blocks are not decoded, so neither the authority nor the method is known: a caller that needs the method derives
//! it from the message. Header fields are never indexed, so the tables of both sides stay as they are.
//!
//! Windows need no account: an answer is at most [`ANSWER_MAX`] bytes and a connection has at most [`CALLS`] of them, which
//! is less than the window that every connection starts with; what a request takes is given back at once.
//!
//! Not here: the socket, and what is answered ([`crate::registration`]); TLS, streaming calls, compression.

mod frame;

use tonic::Code;

use frame::{Frame, Malformed, code, flag, kind, reset, send, unpadded};

/// The client's connection preface.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longest body of a request, with gRPC's prefix of 5 bytes.
const REQUEST_MAX: usize = 4096;
/// Longest message of an answer; a longer one fails the call.
pub(crate) const ANSWER_MAX: usize = 900;
/// Calls of a connection; then it ends, and the client makes another one.
pub(crate) const CALLS: usize = 64;
/// Calls at once.
const STREAMS: usize = 8;
/// Frames by which a block of headers may go on.
const CONTINUATIONS: usize = 8;

/// SETTINGS_MAX_CONCURRENT_STREAMS.
const MAX_CONCURRENT_STREAMS: u16 = 3;

/// Why nothing more is taken from a connection. What there is to send is to be sent, then it is closed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It had all its calls.
    Served,
    /// The client does not keep to the protocol, or asks too much.
    Broken(&'static str),
}

/// The server's side of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Received bytes that are not yet a complete frame.
    input: Vec<u8>,
    greeting: Greeting,
    /// Requests that have begun and not ended.
    streams: Vec<Stream>,
    /// The highest stream that the client has begun.
    highest: u32,
    /// Calls that have begun.
    calls: usize,
    block: Option<Block>,
}

/// How far the client has introduced itself.
#[derive(Debug, PartialEq, Eq)]
enum Greeting {
    Preface,
    Settings,
    Done,
}

#[derive(Debug)]
struct Stream {
    id: u32,
    body: Vec<u8>,
}

/// A block of headers that goes on.
#[derive(Debug)]
struct Block {
    stream: u32,
    ends_stream: bool,
    frames: usize,
}

impl Connection {
    /// A connection, and what is to be sent on it first.
    pub(crate) fn new() -> (Self, Vec<u8>) {
        let mut settings = MAX_CONCURRENT_STREAMS.to_be_bytes().to_vec();
        settings.extend(u32::try_from(STREAMS).unwrap_or(u32::MAX).to_be_bytes());
        let mut output = Vec::new();
        send(&mut output, kind::SETTINGS, 0, 0, &settings);
        let connection = Self {
            input: Vec::new(),
            greeting: Greeting::Preface,
            streams: Vec::new(),
            highest: 0,
            calls: 0,
            block: None,
        };
        (connection, output)
    }

    /// Receives bytes of the client, cut anywhere. `answer` turns a request's message into the answer's. What is to be sent
    /// is added to `output`, also when this is the end.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        output: &mut Vec<u8>,
        answer: impl Fn(&[u8]) -> Result<Vec<u8>, Code>,
    ) -> Result<(), End> {
        self.input.extend(bytes);
        loop {
            match self.step(output, &answer) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(Malformed(code, why)) => {
                    self.go_away(output, code);
                    return Err(End::Broken(why));
                }
            }
            if self.calls >= CALLS && self.streams.is_empty() && self.block.is_none() {
                self.go_away(output, code::NO_ERROR);
                return Err(End::Served);
            }
        }
    }

    /// Handles the preface or the next frame, if it has arrived completely.
    fn step(
        &mut self,
        output: &mut Vec<u8>,
        answer: &impl Fn(&[u8]) -> Result<Vec<u8>, Code>,
    ) -> Result<bool, Malformed> {
        if self.greeting == Greeting::Preface {
            let there = PREFACE.len().min(self.input.len());
            if self.input.iter().zip(PREFACE).any(|(is, should)| is != should) {
                return Err(Malformed(code::PROTOCOL_ERROR, "no HTTP/2"));
            }
            if there < PREFACE.len() {
                return Ok(false);
            }
            self.input.drain(..there);
            self.greeting = Greeting::Settings;
        }
        let Some(frame) = Frame::decode(&mut self.input)? else { return Ok(false) };
        if self.greeting == Greeting::Settings {
            if frame.kind != kind::SETTINGS || frame.flags & flag::ACK != 0 {
                return Err(Malformed(code::PROTOCOL_ERROR, "no SETTINGS first"));
            }
            self.greeting = Greeting::Done;
        }
        let ended = self.frame_came(frame, output)?;
        if let Some(id) = ended
            && let Some(at) = self.streams.iter().position(|stream| stream.id == id)
        {
            let stream = self.streams.swap_remove(at);
            respond(output, id, message(&stream.body).and_then(answer));
        }
        Ok(true)
    }

    /// Handles a frame. Returns the stream whose request it completes.
    fn frame_came(&mut self, frame: Frame, output: &mut Vec<u8>) -> Result<Option<u32>, Malformed> {
        let Frame { kind, flags, stream, payload } = frame;
        if self.block.is_some() != (kind == kind::CONTINUATION) {
            return Err(Malformed(code::PROTOCOL_ERROR, "CONTINUATION missing, or out of place"));
        }
        let of_stream = matches!(kind, kind::DATA | kind::HEADERS | kind::PRIORITY | kind::RST_STREAM);
        let of_connection = matches!(kind, kind::SETTINGS | kind::PING | kind::GOAWAY);
        if of_stream && stream == 0 || of_connection && stream != 0 {
            return Err(Malformed(code::PROTOCOL_ERROR, "a frame on a stream where it cannot be"));
        }
        match kind {
            kind::DATA => return self.data(stream, flags, &payload, output),
            kind::HEADERS => return self.headers(stream, flags, &payload, output),
            kind::CONTINUATION => return self.continuation(stream, flags),
            kind::RST_STREAM => {
                if payload.len() != 4 {
                    return Err(Malformed(code::FRAME_SIZE_ERROR, "RST_STREAM of another size"));
                }
                if stream > self.highest {
                    return Err(Malformed(code::PROTOCOL_ERROR, "RST_STREAM before its stream"));
                }
                self.streams.retain(|open| open.id != stream);
            }
            kind::SETTINGS if flags & flag::ACK == 0 => {
                if !payload.len().is_multiple_of(6) {
                    return Err(Malformed(code::FRAME_SIZE_ERROR, "SETTINGS of another size"));
                }
                send(output, kind::SETTINGS, flag::ACK, 0, &[]);
            }
            kind::PING => {
                if payload.len() != 8 {
                    return Err(Malformed(code::FRAME_SIZE_ERROR, "PING of another size"));
                }
                if flags & flag::ACK == 0 {
                    send(output, kind::PING, flag::ACK, 0, &payload);
                }
            }
            kind::PUSH_PROMISE => return Err(Malformed(code::PROTOCOL_ERROR, "PUSH_PROMISE of a client")),
            // Acknowledged SETTINGS; a client that goes away closes the connection by itself; priorities and windows
            // change nothing here; others are to be ignored.
            kind::SETTINGS | kind::GOAWAY | kind::PRIORITY | kind::WINDOW_UPDATE | 10..=u8::MAX => {}
        }
        Ok(None)
    }

    fn headers(
        &mut self,
        id: u32,
        flags: u8,
        payload: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Option<u32>, Malformed> {
        let block = unpadded(flags, payload)?;
        if flags & flag::PRIORITY != 0 && block.len() < 5 {
            return Err(Malformed(code::FRAME_SIZE_ERROR, "HEADERS without their priority"));
        }
        let ends_stream = flags & flag::END_STREAM != 0;
        if self.streams.iter().any(|stream| stream.id == id) {
            // Trailers.
            if !ends_stream {
                return Err(Malformed(code::PROTOCOL_ERROR, "headers within a request"));
            }
        } else if id > self.highest {
            if id.is_multiple_of(2) {
                return Err(Malformed(code::PROTOCOL_ERROR, "a client's stream with a server's number"));
            }
            self.highest = id;
            self.calls = self.calls.saturating_add(1);
            if self.streams.len() >= STREAMS || self.calls > CALLS {
                reset(output, id, code::REFUSED_STREAM);
            } else {
                self.streams.push(Stream { id, body: Vec::new() });
            }
        }
        // Otherwise the stream has ended on our side while the client was sending.
        if flags & flag::END_HEADERS == 0 {
            self.block = Some(Block { stream: id, ends_stream, frames: 0 });
            return Ok(None);
        }
        Ok(ends_stream.then_some(id))
    }

    fn continuation(&mut self, id: u32, flags: u8) -> Result<Option<u32>, Malformed> {
        let Some(block) = self.block.as_mut().filter(|block| block.stream == id) else {
            return Err(Malformed(code::PROTOCOL_ERROR, "CONTINUATION of another stream"));
        };
        block.frames = block.frames.saturating_add(1);
        if block.frames > CONTINUATIONS {
            return Err(Malformed(code::ENHANCE_YOUR_CALM, "headers without end"));
        }
        let ended = block.ends_stream.then_some(id);
        if flags & flag::END_HEADERS == 0 {
            return Ok(None);
        }
        self.block = None;
        Ok(ended)
    }

    fn data(
        &mut self,
        id: u32,
        flags: u8,
        payload: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Option<u32>, Malformed> {
        let bytes = unpadded(flags, payload)?;
        if id > self.highest {
            return Err(Malformed(code::PROTOCOL_ERROR, "DATA before its stream"));
        }
        // The connection's window, which padding takes from too. A stream's own is larger than what it may send.
        if !payload.is_empty() {
            let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
            send(output, kind::WINDOW_UPDATE, 0, 0, &length.to_be_bytes());
        }
        let Some(at) = self.streams.iter().position(|stream| stream.id == id) else { return Ok(None) };
        let body = &mut self.streams[at].body;
        if body.len() + bytes.len() > REQUEST_MAX {
            self.streams.swap_remove(at);
            reset(output, id, code::ENHANCE_YOUR_CALM);
            return Ok(None);
        }
        body.extend(bytes);
        Ok((flags & flag::END_STREAM != 0).then_some(id))
    }

    fn go_away(&self, output: &mut Vec<u8>, code: u32) {
        let payload = [self.highest.to_be_bytes(), code.to_be_bytes()].concat();
        send(output, kind::GOAWAY, 0, 0, &payload);
    }
}

/// The one message in the body of a unary request.
fn message(body: &[u8]) -> Result<&[u8], Code> {
    let Some(([compressed, length @ ..], message)) = body.split_first_chunk::<5>() else {
        return Err(Code::Internal);
    };
    if *compressed != 0 {
        return Err(Code::Unimplemented);
    }
    let length = u32::from_be_bytes(*length);
    if usize::try_from(length) == Ok(message.len()) { Ok(message) } else { Err(Code::Internal) }
}

/// Sends a whole answer.
fn respond(output: &mut Vec<u8>, id: u32, answer: Result<Vec<u8>, Code>) {
    let answer = match answer {
        Ok(message) if message.len() > ANSWER_MAX => Err(Code::ResourceExhausted),
        answer => answer,
    };
    // Our table of headers is empty, whatever the client's SETTINGS allow; `:status: 200` is the static table's 8th.
    let mut head = vec![0x20, 0x88];
    literal(&mut head, "content-type", "application/grpc");
    let code = match answer {
        Ok(message) => {
            send(output, kind::HEADERS, flag::END_HEADERS, id, &head);
            head.clear();
            let mut body = vec![0];
            body.extend(u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
            body.extend(message);
            send(output, kind::DATA, 0, id, &body);
            Code::Ok
        }
        // Headers and trailers in one.
        Err(code) => code,
    };
    literal(&mut head, "grpc-status", &i32::from(code).to_string());
    send(output, kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, id, &head);
}

/// A header field without indexing and without Huffman's code (RFC 7541, section 6.2.2); both texts below 127 bytes.
fn literal(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    for text in [name, value] {
        block.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        block.extend(text.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u8 = flag::END_STREAM | flag::END_HEADERS;
    /// Bytes that no decoder of headers would take.
    const HEADERS: &[u8] = &[0xff; 20];
    const EMPTY: &[u8] = &[0; 5];

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        send(&mut bytes, kind, flags, stream, payload);
        bytes
    }

    /// A connection after its greeting.
    fn greeted() -> Connection {
        let mut connection = Connection::new().0;
        let hello = [PREFACE, &frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff])].concat();
        assert_eq!(feed(&mut connection, &hello), (vec![(kind::SETTINGS, flag::ACK, 0, vec![])], Ok(())));
        connection
    }

    type Sent = Vec<(u8, u8, u32, Vec<u8>)>;

    /// Gives bytes; the answer of a call is its message, twice.
    fn feed(connection: &mut Connection, bytes: &[u8]) -> (Sent, Result<(), End>) {
        let mut output = Vec::new();
        let taken = connection.receive(bytes, &mut output, |message| Ok(message.repeat(2)));
        let mut frames = Vec::new();
        while let Ok(Some(Frame { kind, flags, stream, payload })) = Frame::decode(&mut output) {
            frames.push((kind, flags, stream, payload));
        }
        assert!(output.is_empty());
        (frames, taken)
    }

    /// The answer to a request, without the window given back.
    fn answered(sent: Sent) -> Vec<(u32, Vec<u8>)> {
        let data = sent.into_iter().filter(|frame| frame.0 == kind::DATA);
        data.map(|(_, _, stream, body)| (stream, body)).collect()
    }

    fn request(stream: u32, body: &[u8]) -> Vec<u8> {
        let headers = frame(kind::HEADERS, flag::END_HEADERS, stream, HEADERS);
        [headers, frame(kind::DATA, flag::END_STREAM, stream, body)].concat()
    }

    #[test]
    fn a_call_is_answered_however_its_bytes_are_cut() {
        let mut head = vec![0x20, 0x88];
        head.extend(b"\0\x0ccontent-type\x10application/grpc");
        let answer = [
            (kind::WINDOW_UPDATE, 0, 0, vec![0, 0, 0, 8]),
            (kind::HEADERS, flag::END_HEADERS, 1, head),
            (kind::DATA, 0, 1, b"\0\0\0\0\x06abcabc".to_vec()),
            (kind::HEADERS, END, 1, b"\0\x0bgrpc-status\x010".to_vec()),
        ];
        let request = request(1, b"\0\0\0\0\x03abc");
        assert_eq!(feed(&mut greeted(), &request), (answer.to_vec(), Ok(())));
        for cut in 0..request.len() {
            let mut connection = greeted();
            let (mut sent, _) = feed(&mut connection, &request[..cut]);
            sent.extend(feed(&mut connection, &request[cut..]).0);
            assert_eq!(sent, answer, "{cut}");
        }
    }

    #[test]
    fn a_request_may_come_in_all_the_ways_there_are() {
        let block = [0xff; 4];
        let padded = [&[3][..], &block, &[0; 3]].concat();
        let priority = [&[0; 5][..], &block].concat();
        let data = |flags, body: &[u8]| frame(kind::DATA, flags, 1, body);
        let headers = |flags, payload: &[u8]| frame(kind::HEADERS, flags, 1, payload);
        let more = |flags| frame(kind::CONTINUATION, flags, 1, &block);
        let [open, all] = [headers(flag::END_HEADERS, &block), data(flag::END_STREAM, EMPTY)];
        let padding = [&[2][..], EMPTY, &[0; 2]].concat();
        let ways = [
            vec![headers(flag::END_HEADERS | flag::PADDED, &padded), all.clone()],
            vec![headers(flag::END_HEADERS | flag::PRIORITY, &priority), all.clone()],
            vec![headers(0, &block), more(0), more(flag::END_HEADERS), all.clone()],
            vec![open.clone(), data(flag::END_STREAM | flag::PADDED, &padding)],
            vec![open.clone(), data(0, &EMPTY[..2]), data(0, &EMPTY[2..]), data(flag::END_STREAM, &[])],
            vec![open.clone(), data(0, EMPTY), headers(END, &block)],
            vec![open.clone(), data(0, EMPTY), headers(flag::END_STREAM, &block), more(flag::END_HEADERS)],
            vec![open.clone(), frame(kind::PRIORITY, 0, 1, &[0; 5]), frame(0xfa, 0xff, 1, &[1]), all.clone()],
            vec![open, frame(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]), all],
        ];
        for (n, way) in ways.iter().enumerate() {
            let (sent, taken) = feed(&mut greeted(), &way.concat());
            assert_eq!((answered(sent), taken), (vec![(1, EMPTY.to_vec())], Ok(())), "{n}");
        }
    }

    #[test]
    fn calls_may_be_interleaved_and_given_up() {
        let open = |stream| frame(kind::HEADERS, flag::END_HEADERS, stream, HEADERS);
        let end = |stream| frame(kind::DATA, flag::END_STREAM, stream, EMPTY);
        let reset = frame(kind::RST_STREAM, 0, 3, &[0, 0, 0, 8]);
        // Frames of a stream that was reset were already in flight.
        let bytes = [open(1), open(3), open(5), reset, end(5), end(3), end(1)].concat();
        let (sent, taken) = feed(&mut greeted(), &bytes);
        assert_eq!(answered(sent).iter().map(|call| call.0).collect::<Vec<_>>(), [5, 1]);
        assert_eq!(taken, Ok(()));
    }

    #[test]
    fn a_ping_comes_back_and_its_answer_does_not() {
        let ping = |flags| frame(kind::PING, flags, 0, b"12345678");
        let sent = vec![(kind::PING, flag::ACK, 0, b"12345678".to_vec())];
        assert_eq!(feed(&mut greeted(), &[ping(0), ping(flag::ACK)].concat()), (sent, Ok(())));
    }

    #[test]
    fn requests_that_are_no_calls_fail_with_their_status() {
        let bodies: [(&[u8], &str); 5] = [
            (b"", "13"),
            (b"\0\0\0", "13"),
            (b"\0\0\0\0\x02a", "13"),
            (b"\0\0\0\0\0a", "13"),
            (b"\x01\0\0\0\x01a", "12"),
        ];
        for (body, status) in bodies {
            let (sent, taken) = feed(&mut greeted(), &request(1, body));
            let (kind, flags, stream, block) = sent.last().unwrap();
            assert_eq!((*kind, *flags, *stream, taken), (kind::HEADERS, END, 1, Ok(())));
            assert!(block.ends_with(format!("grpc-status\x02{status}").as_bytes()), "{body:?}");
        }
        // An answer that the window may not have room for.
        let long = vec![b'a'; ANSWER_MAX / 2 + 1];
        let length = u32::try_from(long.len()).unwrap().to_be_bytes();
        let (sent, _) = feed(&mut greeted(), &request(1, &[&[0][..], &length, &long].concat()));
        assert!(sent.last().unwrap().3.ends_with(b"\x018"));
    }

    #[test]
    fn excess_requests_are_refused() {
        // A request that is too long, and the connection goes on.
        let mut connection = greeted();
        let (sent, taken) = feed(&mut connection, &request(1, &[0; REQUEST_MAX + 1]));
        assert_eq!((sent.last().unwrap(), taken), (&(kind::RST_STREAM, 0, 1, vec![0, 0, 0, 11]), Ok(())));
        assert_eq!(answered(feed(&mut connection, &request(3, EMPTY)).0).len(), 1);

        // Too many at once: the last one may be tried again.
        let streams: Vec<u32> = (0..=STREAMS).map(|n| u32::try_from(2 * n + 1).unwrap()).collect();
        let open = streams
            .iter()
            .map(|&stream| frame(kind::HEADERS, flag::END_HEADERS, stream, HEADERS))
            .collect::<Vec<_>>();
        let (sent, taken) = feed(&mut greeted(), &open.concat());
        assert_eq!((sent, taken), (vec![(kind::RST_STREAM, 0, 17, vec![0, 0, 0, 7])], Ok(())));

        // All that a connection has.
        let mut connection = greeted();
        for n in 0..CALLS {
            let stream = u32::try_from(2 * n + 1).unwrap();
            let (sent, taken) = feed(&mut connection, &request(stream, EMPTY));
            let last = n + 1 == CALLS;
            assert_eq!(taken, if last { Err(End::Served) } else { Ok(()) });
            assert_eq!(sent.last().unwrap().0, if last { kind::GOAWAY } else { kind::HEADERS });
        }
        // Its answers stay within the window that there is without an update.
        const { assert!(CALLS * (ANSWER_MAX + 5) < 65535) };
    }

    #[test]
    fn protocol_violations_close_the_connection() {
        let open = frame(kind::HEADERS, flag::END_HEADERS, 1, HEADERS);
        let begun = frame(kind::HEADERS, 0, 1, HEADERS);
        let endless = frame(kind::CONTINUATION, 0, 1, HEADERS);
        let table = [
            (vec![0, 0x40, 1, kind::DATA, 0, 0, 0, 0, 1], 6),
            (frame(kind::DATA, 0, 1, &[]), 1),
            (frame(kind::DATA, 0, 0, &[]), 1),
            (frame(kind::HEADERS, 0, 0, &[]), 1),
            (frame(kind::HEADERS, END, 2, &[]), 1),
            (frame(kind::HEADERS, END | flag::PRIORITY, 1, &[0; 4]), 6),
            (frame(kind::HEADERS, END | flag::PADDED, 1, &[]), 6),
            (frame(kind::HEADERS, END | flag::PADDED, 1, &[2, 0]), 1),
            ([open.clone(), open].concat(), 1),
            (frame(kind::CONTINUATION, 0, 1, &[]), 1),
            ([begun.clone(), frame(kind::CONTINUATION, 0, 3, &[])].concat(), 1),
            ([begun.clone(), frame(kind::PING, 0, 0, &[0; 8])].concat(), 1),
            ([begun, endless.repeat(CONTINUATIONS + 1)].concat(), 11),
            (frame(kind::RST_STREAM, 0, 1, &[0; 4]), 1),
            (frame(kind::RST_STREAM, 0, 1, &[0; 3]), 6),
            (frame(kind::SETTINGS, 0, 1, &[]), 1),
            (frame(kind::SETTINGS, 0, 0, &[0; 5]), 6),
            (frame(kind::PUSH_PROMISE, 0, 1, &[0; 4]), 1),
            (frame(kind::PING, 0, 0, &[0; 7]), 6),
            (frame(kind::PING, 0, 1, &[0; 8]), 1),
            (frame(kind::GOAWAY, 0, 1, &[0; 8]), 1),
        ];
        for (bytes, code) in table {
            let (sent, taken) = feed(&mut greeted(), &bytes);
            let (kind, _, _, payload) = sent.last().unwrap();
            assert_eq!((*kind, payload.last()), (kind::GOAWAY, Some(&code)), "{bytes:x?}");
            assert!(matches!(taken, Err(End::Broken(_))), "{bytes:x?}");
        }
        for greeting in [&b"GET / HTTP/1.1\r\n"[..], &[PREFACE, &frame(kind::PING, 0, 0, &[0; 8])].concat()] {
            let mut connection = Connection::new().0;
            assert!(matches!(feed(&mut connection, greeting).1, Err(End::Broken(_))));
        }
    }

    #[test]
    fn no_bytes_make_it_panic_or_keep_much() {
        let mut state = 7_u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.to_be_bytes()[1]
        };
        for _ in 0..20_000 {
            let mut connection = greeted();
            for _ in 0..12 {
                let payload: Vec<u8> = (0..random() % 16).map(|_| random()).collect();
                let bytes = frame(random() % 11, random(), u32::from(random() % 6), &payload);
                if feed(&mut connection, &bytes).1.is_err() {
                    break;
                }
                assert!(connection.input.is_empty() && connection.streams.len() <= STREAMS);
            }
        }
    }
}
