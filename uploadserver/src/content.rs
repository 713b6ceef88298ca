//! From the bytes of a request to what goes into the volume: as they are, out of a form, out of a clone's snappy
//! stream, out of a clone's archive. Not here: image formats (`disk_image`), HTTP.

use std::io::Read;
use std::sync::Arc;

use api::names;
use api::upload::{CloneOf, Way};
use disk_image::volume::{self, Checksum, Error, Holds, Input, Member, Origin, Place};
use disk_image::{Format, Once};

use crate::form;

/// How the bytes of an upload are to be understood.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// What is between the parts, if the body is a form.
    pub(crate) boundary: Option<String>,
    /// The body is an archive.
    pub(crate) archive: bool,
    /// What a clone sends.
    pub(crate) clone: Option<CloneOf>,
    /// What the image must hash to: the body, or the field of the form.
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
            return Err(Error::usage("a clone does not come in a form"));
        }
        Ok(Self { boundary, archive: way == Way::Archive, clone, checksum })
    }

    /// What is to become of the volume.
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
                let stream = Box::new(snap::read::FrameDecoder::new(reader));
                let disk = Member::find(stream, names::DISK_FILE)?;
                (Some(disk.size()), Box::new(disk))
            }
            (None, Some(CloneOf::Filesystem | CloneOf::Device)) => {
                (None, Box::new(snap::read::FrameDecoder::new(reader)))
            }
        };
        Ok(Input::new(Arc::new(Once::new("an upload", size, reader))))
    }
}
