//! From the bytes of a request to what goes into the volume: as they are, out of a form, out of a clone's snappy
//! stream, out of a clone's archive. Not here: image formats (`disk_image`), HTTP.

use std::io::{self, Read};
use std::sync::Arc;

use api::names;
use api::upload::{CloneOf, Way};
use disk_image::volume::{self, Checksum, Error, Holds, Input, Member, Origin, Place};
use disk_image::{Format, Once};

use crate::form;

/// How the bytes of an upload are to be understood.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Boundary of the parts, if the body is a form.
    pub(crate) boundary: Option<String>,
    /// The body is an archive.
    pub(crate) archive: bool,
    /// Content of a clone's stream.
    pub(crate) clone: Option<CloneOf>,
    /// Bytes of the device that a clone sends, where they are announced.
    pub(crate) clone_size: Option<u64>,
    /// The image's expected digest: of the body, or of the form's field.
    pub(crate) checksum: Option<Checksum>,
}

impl Shape {
    /// An upload that arrives this way.
    ///
    /// # Errors
    /// Archives and clones do not come in forms, nor clones by async paths.
    pub(crate) fn new(
        way: Way,
        boundary: Option<String>,
        clone: Option<CloneOf>,
        checksum: Option<Checksum>,
    ) -> Result<Self, Error> {
        if clone.is_some() && way.is_async() {
            return Err(Error::new(volume::Kind::Process, "async clone not supported"));
        }
        if clone.is_some() && way.is_form() {
            return Err(Error::usage("a clone cannot be sent as a form: POST it to /v1beta1/upload"));
        }
        Ok(Self { boundary, archive: way == Way::Archive, clone, clone_size: None, checksum })
    }

    /// Wanted content of the volume.
    pub(crate) fn config(&self, server: &volume::Config) -> volume::Config {
        // The device's existence decides, as everywhere in the contract.
        let block = matches!(&server.place, Place::Volume { device, .. } if device.exists());
        let holds = match self.clone {
            Some(CloneOf::Filesystem) if !block => Holds::Clone,
            None if self.archive => Holds::Files,
            Some(CloneOf::Filesystem | CloneOf::Device) | None => Holds::Disk,
        };
        volume::Config {
            holds,
            // A clone is a disk to the byte, whatever it looks like.
            format: self.clone.map(|_| Format::Raw),
            checksum: self.checksum.clone(),
            ..server.clone()
        }
    }
}

/// The body of one upload, and what is made of it.
pub(crate) struct Body {
    /// The bytes as they come; taken when the source is opened.
    pub(crate) reader: Option<Box<dyn Read + Send>>,
    /// How many, if that is known.
    pub(crate) size: Option<u64>,
    pub(crate) shape: Shape,
    /// The volume is to hold files.
    pub(crate) files: bool,
}

impl Origin for Body {
    fn connect(&mut self) -> Result<Input, Error> {
        let reader = self.reader.take().ok_or_else(|| Error::usage("an upload is read once only"))?;
        let (size, reader): (_, Box<dyn Read + Send>) = match (&self.shape.boundary, self.shape.clone) {
            (Some(boundary), _) => (None, Box::new(form::File::new(reader, boundary))),
            (None, None) => (self.size, reader),
            (None, Some(CloneOf::Filesystem)) if !self.files => {
                let stream = Box::new(Snappy::new(reader));
                let disk = Member::find(stream, names::DISK_FILE)?;
                (Some(disk.size()), Box::new(disk))
            }
            (None, Some(CloneOf::Filesystem)) => (None, Box::new(Snappy::new(reader))),
            (None, Some(CloneOf::Device)) => {
                let decoder = Snappy::new(reader);
                (None, Box::new(Whole { inner: decoder, read: 0, size: self.shape.clone_size }))
            }
        };
        Ok(Input::new(Arc::new(Once::new("an upload", size, reader))))
    }
}

/// The bytes of a stream in Snappy's frames.
struct Snappy<R: Read>(snap::read::FrameDecoder<R>);

impl<R: Read> Snappy<R> {
    fn new(reader: R) -> Self {
        Self(snap::read::FrameDecoder::new(reader))
    }
}

impl<R: Read> Read for Snappy<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|error| {
            let of_decoder = error.get_ref().is_some_and(|inner| inner.is::<snap::Error>());
            match of_decoder || error.kind() == io::ErrorKind::UnexpectedEof {
                true => {
                    let text = format!(
                        "the clone is not a whole Snappy stream, check that its source pod is a cloner and clone again: {error}"
                    );
                    io::Error::new(io::ErrorKind::InvalidData, text)
                }
                false => error,
            }
        })
    }
}

/// A device's bytes, which must be as many as the sender announced, or at least one: an empty device is no clone of anything.
struct Whole<R> {
    inner: R,
    read: u64,
    size: Option<u64>,
}

impl<R: Read> Read for Whole<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.read += u64::try_from(count).unwrap_or(u64::MAX);
        let ended = count == 0 && !buffer.is_empty();
        match self.size {
            Some(size) if self.read > size || ended && self.read < size => {
                // Nothing is read beyond the announced size, so the size of the rest is unknown.
                let sent = match self.read > size {
                    true => format!("more than {size}"),
                    false => self.read.to_string(),
                };
                let text = format!(
                    "the clone sent {sent} bytes of a device, and its header announced {size}; clone it again"
                );
                Err(io::Error::new(io::ErrorKind::InvalidData, text))
            }
            _ if ended && self.read == 0 => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the clone of a device has no bytes; check the log of the clone's source pod",
            )),
            _ => Ok(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(bytes: &[u8], size: Option<u64>) -> Result<Vec<u8>, String> {
        let mut read = Vec::new();
        let mut stream = Whole { inner: bytes, read: 0, size };
        stream.read_to_end(&mut read).map(|_| read).map_err(|error| error.to_string())
    }

    #[test]
    fn a_device_has_as_many_bytes_as_its_sender_announced_and_is_never_empty() {
        assert_eq!(whole(b"disk", None).unwrap(), b"disk");
        assert_eq!(whole(b"disk", Some(4)).unwrap(), b"disk");
        assert!(
            whole(b"dis", Some(4))
                .unwrap_err()
                .contains("sent 3 bytes of a device, and its header announced 4")
        );
        let more = whole(b"disks", Some(4)).unwrap_err();
        assert!(more.contains("sent more than 4 bytes of a device, and its header announced 4"), "{more}");
        for size in [None, Some(0)] {
            assert!(whole(b"", size).unwrap_err().contains("no bytes"), "{size:?}");
        }
        assert!(whole(b"", Some(4)).unwrap_err().contains("sent 0 bytes"));
    }
}
