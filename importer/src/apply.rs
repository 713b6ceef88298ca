//! Carries an import out: opens the source, and has `disk_image::volume` fill the target from it. Doing it twice gives
//! the same disk; what an interrupted try has finished is kept. Not here: exit codes, messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use disk_image::volume::{self, Done, Input, Origin, Session, Verify};

use crate::config::{Config, Location};
use crate::error::Error;
use crate::source::open::{Opened, open};
use crate::source::remote::Changed;

/// Imports.
///
/// # Errors
/// The first failure; ranges that are durable by then are in the journal.
pub(crate) fn import(config: &Config, session: &Session) -> Result<Done, Error> {
    if config.location == Location::Blank {
        return volume::blank(&config.volume, session);
    }
    let mut named = Named { config, session, labels: BTreeMap::new() };
    let done = volume::import(&config.volume, session, &mut named)?;
    Ok(Done { labels: named.labels, ..done })
}

/// The source that was named.
struct Named<'a> {
    config: &'a Config,
    session: &'a Session,
    /// Those of the image that was opened last.
    labels: BTreeMap<String, String>,
}

impl Origin for Named<'_> {
    fn connect(&mut self) -> Result<Input, Error> {
        let Config { location, access, limits, .. } = self.config;
        let opened = open(location, access, limits, &self.session.stop)?;
        tracing::info!(source = %location, facts = ?opened.source.facts(), "opened the source");
        let Opened { source, identity, local, read_from, unverified, labels } = opened;
        self.labels = labels;
        let verify = unverified.map(|disk| Arc::new(move |stop: &_| disk.verify(stop)) as Verify);
        Ok(Input { source, identity, local, read_from, name: Some(location.to_string()), verify })
    }

    fn changed(&self, error: &Error) -> bool {
        Changed::find(error).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Root;
    use crate::report::{self, Answer, ImportFacts};
    use api::import::{Content, Job};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::PathBuf;

    const MIB: u64 = 1 << 20;

    /// A pod's paths below a folder, and the import of a local file under the contract. (The contract has no local
    /// source; everything behind the source is the same.)
    struct Pod {
        folder: tempfile::TempDir,
    }

    impl Pod {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir(folder.path().join("data")).unwrap();
            Self { folder }
        }

        fn config(&self, job: Job, bytes: &[u8]) -> Config {
            let image = self.folder.path().join("image");
            std::fs::write(&image, bytes).unwrap();
            let root = Root { folder: self.folder.path().to_owned(), metrics_port: 0 };
            let job = Job { endpoint: "http://h/i".into(), filesystem_overhead: 0.06, ..job };
            let mut config = Config::from_job(job, Vec::new(), &root).unwrap();
            config.location = Location::File(image);
            config
        }

        fn run(&self, job: Job, bytes: &[u8]) -> Answer {
            let config = self.config(job, bytes);
            let outcome = import(&config, &Session::default());
            report::answer(ImportFacts::of(&config, config.volume.scratch_mounted(), None), &outcome)
        }

        fn disk(&self) -> PathBuf {
            self.folder.path().join("data/disk.img")
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(self.folder.path().join("data")).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    #[test]
    fn the_contracts_disk() {
        let pod = Pod::new();
        let bytes = vec![7; 3 * 1024 * 1024 + 512];
        let answer = pod.run(Job { image_size: Some(64 * MIB), ..Job::default() }, &bytes);
        assert_eq!(answer.exit, 0);
        assert_eq!(answer.termination.as_deref(), Some(r#"{"message":"Import Complete"}"#));
        let meta = std::fs::metadata(pod.disk()).unwrap();
        assert_eq!(
            (meta.len(), meta.uid(), meta.gid(), meta.permissions().mode() & 0o7777),
            (60 * MIB, 107, 107, 0o660)
        );
        let disk = std::fs::read(pod.disk()).unwrap();
        assert!(disk[..bytes.len()] == bytes && disk[bytes.len()..].iter().all(|&b| b == 0));
        assert_eq!(pod.names(), ["disk.img"]);
        // Again, over what is there: the same disk.
        assert_eq!(pod.run(Job { image_size: Some(64 * MIB), ..Job::default() }, &bytes).exit, 0);
        assert!(std::fs::read(pod.disk()).unwrap() == disk);
    }

    #[test]
    fn an_image_larger_than_the_request() {
        let pod = Pod::new();
        let answer = pod.run(Job { image_size: Some(MIB), ..Job::default() }, &vec![7; 2 << 20]);
        assert_eq!(answer.exit, 1);
        assert_eq!(
            answer.termination.as_deref(),
            Some(
                "Unable to process data: virtual image size 2097152 is larger than the reported available storage 1048576. A larger PVC is required"
            )
        );
        assert!(pod.names().is_empty());
        // The retry after the volume grew succeeds.
        assert_eq!(pod.run(Job { image_size: Some(4 * MIB), ..Job::default() }, &vec![7; 2 << 20]).exit, 0);
    }

    #[test]
    fn a_checksum_mismatch_deletes_and_exits_0() {
        let pod = Pod::new();
        let checksum = "md5:d41d8cd98f00b204e9800998ecf8427e";
        let answer = pod.run(Job { checksum: checksum.into(), ..Job::default() }, b"something");
        assert_eq!(answer.exit, 0);
        let message = answer.termination.unwrap();
        assert!(message.starts_with(r#"{"message":"checksum mismatch"#), "{message}");
        assert!(pod.names().is_empty());
    }

    #[test]
    fn unrecognized_content_is_imported_with_a_warning() {
        let pod = Pod::new();
        let page = b"<!DOCTYPE html><html></html>";
        let answer = pod.run(Job::default(), page);
        assert_eq!(answer.exit, 0);
        let message = answer.termination.unwrap();
        assert!(message.contains("Import Complete; warning: ") && message.contains("HTML"), "{message}");
        assert_eq!(std::fs::read(pod.disk()).unwrap(), page);
    }

    #[test]
    fn archives_go_into_the_volume_itself() {
        let pod = Pod::new();
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(4);
        header.set_mode(0o644);
        tar.append_data(&mut header, "sub/file", &b"text"[..]).unwrap();
        let bytes = tar.into_inner().unwrap();
        let job = Job { content: Content::Archive, ..Job::default() };
        assert_eq!(pod.run(job.clone(), &bytes).exit, 0);
        assert_eq!(std::fs::read(pod.folder.path().join("data/sub/file")).unwrap(), b"text");
        let wrong = Job { checksum: "md5:d41d8cd98f00b204e9800998ecf8427e".into(), ..job };
        assert_eq!(pod.run(wrong, &bytes).exit, 0);
        assert!(pod.names().is_empty());
    }
}
