//! The image in a form: the part named `file` of multipart/form-data (RFC 7578, RFC 2046), as it streams by. Everything
//! around it is skipped. Not here: what the bytes are.

use std::io::{self, Read};

use api::upload::FORM_FIELD;
use disk_image::volume::Error;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use memchr::memmem::Finder;

/// Longest boundary (RFC 2046, section 5.1.1).
const BOUNDARY_MAX: usize = 70;
/// Headers of one part.
const HEADERS_MAX: usize = 16 << 10;
/// Bytes read at a time.
const PIECE: usize = 64 << 10;

/// Boundary of the parts, from the headers of a request.
///
/// # Errors
/// When the request is no form.
pub(crate) fn boundary(headers: &HeaderMap) -> Result<String, Error> {
    let wrong =
        |why| Error::usage(format!("the request is not a form as curl -F file=@IMAGE sends it: {why}"));
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.ok_or_else(|| wrong("it has no Content-Type"))?;
    let (name, parameters) = kind.split_once(';').unwrap_or((kind, ""));
    if !name.trim().eq_ignore_ascii_case("multipart/form-data") {
        return Err(wrong("its Content-Type is not multipart/form-data"));
    }
    let given = parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.trim().split_once('=')?;
        name.eq_ignore_ascii_case("boundary").then(|| value.trim_matches('"').to_owned())
    });
    given
        .filter(|boundary| (1..=BOUNDARY_MAX).contains(&boundary.len()))
        .ok_or_else(|| wrong("its Content-Type has no boundary"))
}

/// The bytes of the part named `file`. What follows it is not read.
pub(crate) struct File<R> {
    input: R,
    /// A line end, two dashes, the boundary.
    delimiter: Finder<'static>,
    buffer: Vec<u8>,
    /// Bytes of one read.
    piece: Box<[u8]>,
    /// Bytes of the buffer that were given out.
    given: usize,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the part.
    Before,
    /// In it.
    Within,
    /// Behind it.
    Behind,
}

impl<R: Read> File<R> {
    /// The part in `input`.
    pub(crate) fn new(input: R, boundary: &str) -> Self {
        let delimiter = Finder::new(&format!("\r\n--{boundary}")).into_owned();
        // The first boundary may stand at the very start, where no line end is before it.
        Self {
            input,
            delimiter,
            buffer: b"\r\n".to_vec(),
            piece: vec![0; PIECE].into(),
            given: 0,
            state: State::Before,
        }
    }

    fn pending(&self) -> &[u8] {
        &self.buffer[self.given..]
    }

    /// Reads more; whether anything came.
    fn more(&mut self) -> io::Result<bool> {
        self.buffer.drain(..self.given);
        self.given = 0;
        let got = self.input.read(&mut self.piece)?;
        self.buffer.extend_from_slice(&self.piece[..got]);
        Ok(got > 0)
    }

    /// Skips to behind the next delimiter.
    fn skip_delimiter(&mut self) -> io::Result<()> {
        let needle = self.delimiter.needle().len();
        loop {
            if let Some(at) = self.delimiter.find(self.pending()) {
                self.given += at + needle;
                return Ok(());
            }
            self.given += self.pending().len().saturating_sub(needle - 1);
            if !self.more()? {
                return Err(refused(format!("the form has no field \"{FORM_FIELD}\" with the image")));
            }
        }
    }

    /// Skips to the data of the part.
    fn seek(&mut self) -> io::Result<()> {
        loop {
            self.skip_delimiter()?;
            let end = loop {
                if self.pending().starts_with(b"--") {
                    return Err(refused(format!("the form has no field \"{FORM_FIELD}\" with the image")));
                }
                if let Some(end) = memchr::memmem::find(self.pending(), b"\r\n\r\n") {
                    break end;
                }
                if self.pending().len() > HEADERS_MAX {
                    return Err(refused("the headers of a form field are too long".to_owned()));
                }
                if !self.more()? {
                    return Err(refused(
                        "the form is cut short within a field's headers; send it again".to_owned(),
                    ));
                }
            };
            let headers = String::from_utf8_lossy(&self.pending()[..end.min(HEADERS_MAX)]).into_owned();
            // The line end before the data may be that of an empty part's delimiter.
            self.given += end + 2;
            if is_file(&headers) {
                self.given += 2;
                return Ok(());
            }
        }
    }
}

/// Whether a part's headers name it `file`.
fn is_file(headers: &str) -> bool {
    headers.lines().filter_map(|line| line.split_once(':')).any(|(name, value)| {
        name.trim().eq_ignore_ascii_case("content-disposition")
            && value.split(';').any(|parameter| {
                let (name, value) = parameter.trim().split_once('=').unwrap_or_default();
                name.eq_ignore_ascii_case("name") && value.trim_matches('"') == FORM_FIELD
            })
    })
}

fn refused(what: String) -> io::Error {
    Error::usage(what).into()
}

impl<R: Read> Read for File<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.state == State::Before {
            self.seek()?;
            self.state = State::Within;
        }
        let needle = self.delimiter.needle().len();
        while self.state == State::Within && !buf.is_empty() {
            let found = self.delimiter.find(self.pending());
            // The last bytes may be the beginning of a delimiter.
            let sure = found.unwrap_or_else(|| self.pending().len().saturating_sub(needle - 1));
            if sure > 0 {
                let len = sure.min(buf.len());
                buf[..len].copy_from_slice(&self.pending()[..len]);
                self.given += len;
                return Ok(len);
            }
            if found.is_some() {
                self.state = State::Behind;
            } else if !self.more()? {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the form is cut short within the image; send it again",
                ));
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives at most so many bytes at a time.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let len = self.1.min(buf.len()).min(self.0.len());
            buf[..len].copy_from_slice(&self.0[..len]);
            self.0 = &self.0[len..];
            Ok(len)
        }
    }

    fn field(name: &str, data: &[u8]) -> Vec<u8> {
        let head = format!(
            "--B\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"x\"\r\nContent-Type: a/b\r\n\r\n"
        );
        [head.as_bytes(), data, b"\r\n"].concat()
    }

    fn read(form: &[u8], step: usize) -> io::Result<Vec<u8>> {
        let mut data = Vec::new();
        File::new(Slow(form, step), "B").read_to_end(&mut data)?;
        Ok(data)
    }

    #[test]
    fn the_image_is_found_in_pieces_of_any_size() {
        let tricky = b"\r\n--\r\n-\r\n--A\r\n--b bytes \r\n\r\n--".to_vec();
        for data in [tricky, Vec::new(), vec![7; 200_000], b"\r\n".to_vec()] {
            let form = [field("other", b"words"), field("file", &data), b"--B--\r\n".to_vec()].concat();
            for step in [1, 2, 3, 7, 64 << 10] {
                assert!(read(&form, step).unwrap() == data, "{} bytes by {step}", data.len());
            }
        }
        let preamble = [b"preamble\r\n".to_vec(), field("file", b"x"), b"--B--".to_vec()].concat();
        assert_eq!(read(&preamble, 5).unwrap(), b"x");
    }

    #[test]
    fn bodies_without_a_form_with_an_image_are_refused() {
        let long = format!("--B\r\nX: {}\r\n\r\n", "y".repeat(HEADERS_MAX * 2));
        for form in [
            Vec::new(),
            b"--B--".to_vec(),
            b"nothing of the kind".to_vec(),
            [field("other", b"file"), b"--B--".to_vec()].concat(),
            b"--B\r\nContent-Disposition: form-data; name=\"file\"\r\n".to_vec(),
            long.into_bytes(),
            field("file", b"no end")[..90].to_vec(),
        ] {
            assert!(read(&form, 1000).is_err(), "{:?}", String::from_utf8_lossy(&form[..form.len().min(80)]));
        }
    }

    #[test]
    fn boundaries() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, value.parse().unwrap());
            boundary(&headers).ok()
        };
        assert_eq!(of("multipart/form-data; boundary=abc").as_deref(), Some("abc"));
        assert_eq!(of("Multipart/Form-Data; charset=x; Boundary=\"a b\"").as_deref(), Some("a b"));
        for wrong in ["multipart/mixed; boundary=a", "multipart/form-data", "application/octet-stream"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        assert_eq!(of(&format!("multipart/form-data; boundary={}", "x".repeat(71))), None);
        assert!(boundary(&HeaderMap::new()).is_err());
    }
}
