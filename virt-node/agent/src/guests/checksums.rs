//! Checksums of the files from images that a guest is started with: its containerDisks, its kernel and its initrd. As
//! upstream, CRC-32 of the whole file, for the status of the VMI.
//!
//! They are computed once for each start, some seconds after it, and one guest of the node after the other. A computation
//! stops when its guest is gone.
//!
//! Not here: how the files are shown to the launcher ([`super::disks`]).

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use api::kubevirt::{BootFileStatus, VirtualMachineInstanceSpec, VirtualMachineInstanceStatus as Status};
use rustix::fs::{Advice, fadvise};
use tokio::sync::Semaphore;
use virt::pod as place;

use super::talk::Talk;
use crate::error::{Error, Kind, Result};
use crate::pods::process::Process;
use crate::pods::{PodDirectory, mount};

/// Time from the guest's start, or from a failure, to the computation.
const DELAY: Duration = Duration::from_secs(10);
/// How often the checksums of a guest are tried.
const ATTEMPTS: usize = 4;
/// Longest file that has a checksum, in bytes: reading it takes the node's disk for minutes.
const LENGTH_MAX: u64 = 64 << 30;
/// Bytes of one read.
const PIECE: usize = 1 << 20;
/// Held by the guest whose files are read.
static TURN: Semaphore = Semaphore::const_new(1);

/// The use that a guest makes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The containerDisk of this volume.
    Disk(String),
    Kernel,
    Initrd,
}

/// Files from images: the use of each, and its name in the launcher's directory of such files.
pub(crate) type Files = Vec<(Role, String)>;

/// The files from images that a guest is started with.
pub(crate) fn files(spec: &VirtualMachineInstanceSpec) -> Files {
    let disks = place::container_disks(spec);
    let mut files: Files = disks
        .map(|(index, volume)| (Role::Disk(volume.name.clone()), place::container_disk_file(index)))
        .collect();
    let boot = spec.domain.firmware.as_ref().and_then(|firmware| firmware.kernel_boot.as_ref());
    if let Some(image) = boot.and_then(|boot| boot.container.as_ref()) {
        if image.kernel_path.is_some() {
            files.push((Role::Kernel, place::KERNEL.to_owned()));
        }
        if image.initrd_path.is_some() {
            files.push((Role::Initrd, place::INITRD.to_owned()));
        }
    }
    files
}

/// Checksums by the use of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checksums(Vec<(Role, u32)>);

impl Checksums {
    /// Writes them into the status of the guest.
    pub(crate) fn note(&self, status: &mut Status) {
        for (role, checksum) in &self.0 {
            let known = Some(BootFileStatus { checksum: Some(*checksum) });
            match role {
                Role::Disk(name) => {
                    if let Some(volume) = status.volume_status.iter_mut().find(|one| one.name == *name) {
                        volume.container_disk_volume = known;
                    }
                }
                Role::Kernel => status.kernel_boot_status.get_or_insert_default().kernel_info = known,
                Role::Initrd => status.kernel_boot_status.get_or_insert_default().initrd_info = known,
            }
        }
    }
}

/// Computes the checksums of files that the launcher of a pod has, for a cell that the guest's state holds; `None`: the
/// cell is gone, and the guest with it. A failure is tried again a few times.
///
/// # Errors
/// The launcher does not answer, or a file cannot be read.
pub(crate) async fn compute(
    kubelet: &Path,
    pod: &str,
    files: &[(Role, String)],
    cell: &Weak<OnceLock<Checksums>>,
) -> Result<Option<Checksums>> {
    let mut attempt = 1;
    loop {
        tokio::time::sleep(DELAY).await;
        match once(kubelet, pod, files, cell).await {
            Err(_) if cell.strong_count() == 0 => return Ok(None),
            Err(error) if attempt < ATTEMPTS => {
                tracing::debug!(pod, error = error.chain(), "cannot compute checksums of images; retrying");
            }
            computed => return computed,
        }
        attempt += 1;
    }
}

/// One attempt, when no other guest's files are read.
async fn once(
    kubelet: &Path,
    pod: &str,
    files: &[(Role, String)],
    cell: &Weak<OnceLock<Checksums>>,
) -> Result<Option<Checksums>> {
    let _turn = TURN.acquire().await;
    if cell.strong_count() == 0 {
        return Ok(None);
    }
    let gone = || Error::new(Kind::Launcher, format!("pod {pod} has no directory"));
    let directory = Arc::new(PodDirectory::open(kubelet, pod)?.ok_or_else(gone)?);
    let (_, launcher) = Talk::open(&directory).await?;
    let (files, cell) = (files.to_vec(), cell.clone());
    let work = move || all(&launcher, files, &|| cell.strong_count() > 0);
    let computed = tokio::task::spawn_blocking(work).await;
    computed.unwrap_or_else(|_| Err(Error::new(Kind::System, "a checksum was aborted: the thread panicked")))
}

/// The checksums of files, on a thread that may wait; `None`: they are not wanted any more.
fn all(launcher: &Process, files: Files, is_wanted: &dyn Fn() -> bool) -> Result<Option<Checksums>> {
    let mut known = Vec::new();
    for (role, name) in files {
        if !is_wanted() {
            return Ok(None);
        }
        let missing = || Error::new(Kind::Launcher, format!("{name} is not shown to the launcher any more"));
        let disk = mount::find(launcher, place::CONTAINER_DISKS, &name)?.ok_or_else(missing)?;
        let unread = |error: io::Error| Error::system(format!("cannot read {name}"), error);
        let file = disk.open(false).map_err(|error| unread(error.into()))?;
        if let Some(checksum) = of(file, is_wanted).map_err(unread)? {
            known.push((role, checksum));
        }
    }
    Ok(is_wanted().then_some(Checksums(known)))
}

/// The checksum of a file; none if it is too long, or not wanted any more.
fn of(file: File, is_wanted: &dyn Fn() -> bool) -> io::Result<Option<u32>> {
    if file.metadata()?.len() > LENGTH_MAX {
        return Ok(None);
    }
    // Pages that are read once push none of the node's out; advice that is refused costs memory and nothing else.
    let _ = fadvise(&file, 0, None, Advice::NoReuse);
    sum(file, is_wanted)
}

fn sum(mut bytes: impl Read, is_wanted: &dyn Fn() -> bool) -> io::Result<Option<u32>> {
    let (mut hasher, mut piece) = (crc32fast::Hasher::new(), vec![0; PIECE]);
    while is_wanted() {
        match bytes.read(&mut piece) {
            Ok(0) => return Ok(Some(hasher.finalize())),
            Ok(length) => hasher.update(piece.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use api::kubevirt::VolumeStatus;
    use serde_json::json;

    use super::*;

    fn spec() -> VirtualMachineInstanceSpec {
        let boot = json!({"container": {"image": "i", "kernelPath": "/k", "initrdPath": "/i"}});
        serde_json::from_value(json!({
            "domain": {"devices": {}, "firmware": {"kernelBoot": boot}},
            "volumes": [
                {"name": "data", "emptyDisk": {"capacity": "1Mi"}}, {"name": "root", "containerDisk": {"image": "i"}},
            ],
        }))
        .unwrap()
    }

    #[test]
    fn files_are_those_of_container_disks_and_of_the_kernel_in_an_image() {
        let name = |name: &str| name.to_owned();
        let wanted = [
            (Role::Disk(name("root")), name("disk_1.img")),
            (Role::Kernel, name("kernel")),
            (Role::Initrd, name("initrd")),
        ];
        assert_eq!(files(&spec()), wanted);
        let mut plain = spec();
        plain.domain.firmware = None;
        plain.volumes.pop();
        assert!(files(&plain).is_empty());
    }

    #[test]
    fn checksums_are_in_the_status_at_upstreams_places() {
        let volume = |name: &str| VolumeStatus { name: name.to_owned(), ..VolumeStatus::default() };
        let mut status = Status { volume_status: vec![volume("data"), volume("root")], ..Status::default() };
        let (gone, root) = (Role::Disk("gone".to_owned()), Role::Disk("root".to_owned()));
        Checksums(vec![(gone, 9), (root, 1), (Role::Kernel, 2), (Role::Initrd, 3)]).note(&mut status);
        let status = serde_json::to_value(&status).unwrap();
        assert_eq!(status["volumeStatus"][0]["containerDiskVolume"], json!(null));
        assert_eq!(status["volumeStatus"][1]["containerDiskVolume"], json!({"checksum": 1}));
        let kernel = json!({"kernelInfo": {"checksum": 2}, "initrdInfo": {"checksum": 3}});
        assert_eq!(status["kernelBootStatus"], kernel);
    }

    #[test]
    fn a_checksum_is_the_crc_32_of_all_bytes() {
        // The check value of CRC-32/ISO-HDLC, which Go calls IEEE.
        assert_eq!(sum(&b"123456789"[..], &|| true).unwrap(), Some(0xcbf4_3926));
        let long = tempfile::NamedTempFile::new().unwrap();
        let content = vec![7_u8; 2 * PIECE + 1];
        std::fs::write(long.path(), &content).unwrap();
        let whole = crc32fast::hash(&content);
        assert_eq!(of(File::open(long.path()).unwrap(), &|| true).unwrap(), Some(whole));
        long.as_file().set_len(LENGTH_MAX + 1).unwrap();
        let too_long = of(File::open(long.path()).unwrap(), &|| true).unwrap();
        assert_eq!(too_long, None);
    }

    #[tokio::test]
    async fn a_computation_stops_when_its_guest_is_gone() {
        let left = std::cell::Cell::new(3_u32);
        let is_wanted = || left.replace(left.get().saturating_sub(1)) > 0;
        assert_eq!(sum(io::repeat(0), &is_wanted).unwrap(), None, "in the middle of a file");
        let kubelet = tempfile::tempdir().unwrap();
        let cell = Arc::new(OnceLock::new());
        let pod = "0a1b2c3d-0000-4000-8000-00000000000f";
        let watched = Arc::downgrade(&cell);
        assert!(once(kubelet.path(), pod, &[], &watched).await.is_err(), "the pod has no directory");
        drop(cell);
        assert_eq!(once(kubelet.path(), pod, &[], &watched).await.unwrap(), None, "it is not looked for");
    }
}
