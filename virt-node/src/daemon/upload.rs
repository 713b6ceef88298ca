//! Filling a volume with what a client sends: the upload server, executed by its environment contract, with the volume's
//! folder as the root that a pod would give it. It is watched as an importer is ([`super::import`]), and outlives the daemon
//! like one.
//!
//! ```text
//! claims/UID/upload/ca.crt, server.crt, server.key   the server's certificate, and the CA of its one client
//! claims/UID/upload/client.crt, client.key           that client, for commands that ask the daemon
//! claims/UID/log                                     the server's log, which has its port
//! ```
//!
//! Certificates are made for one server and end with it. Not here: the sender ([`crate::command`]).

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use api::names;
use api::upload::Server;
use dir::Owner;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair,
};

use super::process;

/// The client's name in its certificate.
const CLIENT: &str = "virt-node";
/// The server's log message before its port.
const LISTENS: &str = "waiting for an upload address=127.0.0.1:";

/// How a server is reached.
pub(super) struct UploadAddress {
    /// Of 127.0.0.1.
    pub(super) port: u16,
    /// The issuer of the server's certificate, PEM.
    pub(super) authority: String,
    /// The client's certificate, PEM.
    pub(super) certificate: String,
    /// Its key, PEM.
    pub(super) key: String,
}

/// The server of a volume's folder, while it waits for an upload or takes one.
pub(super) fn door(root: &Path) -> Option<UploadAddress> {
    let log = root.join("log");
    let said = process::end_of(&log).ok()?;
    let said = String::from_utf8_lossy(&said);
    let (_, port) = said.rsplit_once(LISTENS)?;
    let port = port.split_once('\n')?.0.parse().ok()?;
    let read = |name: &str| fs::read_to_string(root.join("upload").join(name)).ok();
    let (authority, certificate, key) = (read("ca.crt")?, read("client.crt")?, read("client.key")?);
    process::lives(&log).then_some(UploadAddress { port, authority, certificate, key })
}

/// Certificates, and the command, with what is to stay open until it is started.
pub(super) fn prepare(root: &Path, server: &Server, user: Owner) -> io::Result<(Command, Option<fs::File>)> {
    fs::create_dir_all(root.join("dev"))?;
    let folder = root.join("upload");
    fs::create_dir_all(&folder)?;
    let authority = authority().map_err(io::Error::other)?;
    write(&folder.join("ca.crt"), &authority.pem(), user)?;
    for (name, common, usage, owner) in [
        ("server", "localhost", ExtendedKeyUsagePurpose::ServerAuth, user),
        ("client", CLIENT, ExtendedKeyUsagePurpose::ClientAuth, Owner::ROOT),
    ] {
        let (certificate, key) = sign(&authority, common, usage).map_err(io::Error::other)?;
        write(&folder.join(format!("{name}.crt")), &certificate, owner)?;
        write(&folder.join(format!("{name}.key")), &key, owner)?;
    }
    // The log of an earlier server must not be read as this one's.
    fs::File::create(root.join("log"))?;
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let server = Server {
        listen_address: "127.0.0.1".to_owned(),
        listen_port: Some(0),
        cert_file: path("server.crt"),
        key_file: path("server.key"),
        client_cert_file: path("ca.crt"),
        client_name: CLIENT.to_owned(),
        ..server.clone()
    };
    let (mut command, program) = process::command("uploadserver");
    command.arg("-v=1").current_dir(root).stdout(Stdio::null());
    command.env(names::UPLOAD_ROOT_VARIABLE, root).envs(server.to_env());
    command.uid(user.uid).gid(user.gid);
    Ok((command, program))
}

fn authority() -> Result<CertifiedIssuer<'static, KeyPair>, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "uploads of this machine");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    CertifiedIssuer::self_signed(params, KeyPair::generate()?)
}

/// A certificate of this name, and its key.
fn sign(
    authority: &CertifiedIssuer<'static, KeyPair>,
    name: &str,
    usage: ExtendedKeyUsagePurpose,
) -> Result<(String, String), rcgen::Error> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![usage];
    let key = KeyPair::generate()?;
    Ok((params.signed_by(&key, authority)?.pem(), key.serialize_pem()))
}

/// A file readable by its owner alone.
fn write(path: &Path, text: &str, owner: Owner) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::File::options().write(true).create_new(true).mode(0o400).open(path)?;
    file.write_all(text.as_bytes())?;
    owner.give(&file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_port_is_its_own_words_while_it_lives() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir(root.join("upload")).unwrap();
        for name in ["ca.crt", "client.crt", "client.key"] {
            fs::write(root.join("upload").join(name), name).unwrap();
        }
        assert!(door(root).is_none(), "there is no log");
        let log = root.join("log");
        fs::write(&log, format!("INFO {LISTENS}1\nwarn\nINFO {LISTENS}65535\nmore\n")).unwrap();
        assert!(door(root).is_none(), "nobody lives");
        let file = fs::File::open(&log).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        assert_eq!(door(root).map(|door| (door.port, door.key)), Some((65535, "client.key".to_owned())));
        fs::write(&log, format!("INFO {LISTENS}1")).unwrap();
        assert!(door(root).is_none(), "the line is not whole");
    }
}
