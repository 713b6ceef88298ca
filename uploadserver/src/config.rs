//! The server as the environment describes it: one checked [`Config`]. Not here: uploads.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use api::names;
use api::upload::Server;
use disk_image::transfer::Limits;
use disk_image::volume::{self, Contract, Error, Holds, Kind, Owner, Place};
use jiff::Timestamp;
use serve::tls::{Certificate, Clients, Identity};

/// One server.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) identity: Identity,
    pub(crate) clients: Clients,
    /// Common name of the one client.
    pub(crate) client_name: String,
    /// Content of the volume, as far as an upload does not specify it.
    pub(crate) volume: volume::Config,
    pub(crate) deadline: Option<Timestamp>,
    /// Label of the progress metric.
    pub(crate) owner_uid: String,
    pub(crate) termination_log: PathBuf,
}

impl Config {
    /// The server that the environment describes, with the contract's paths below `root`.
    ///
    /// # Errors
    /// A variable is missing or malformed.
    pub(crate) fn from_server(server: Server, root: &Path) -> Result<Self, Error> {
        let below = |path: &str| root.join(path.trim_start_matches('/'));
        let given = |name: &str, value: String| match value.is_empty() {
            true => Err(Error::usage(format!("the variable {name} is not set"))),
            false => Ok(value),
        };
        // Exhaustive: a new variable of the contract is given a meaning here or does not compile.
        let Server {
            listen_address,
            listen_port,
            key_file,
            cert_file,
            client_cert_file,
            client_name,
            tls_ciphers,
            tls_min_version,
            image_size,
            filesystem_overhead,
            preallocation,
            destination,
            deadline,
            owner_uid,
        } = server;
        let address: IpAddr = match listen_address.as_str() {
            "" | "0.0.0.0" => Ipv6Addr::UNSPECIFIED.into(),
            text => text
                .parse()
                .map_err(|e| Error::with(Kind::Usage, "LISTEN_ADDRESS is not an IP address", e))?,
        };
        let deadline = Some(deadline).filter(|text| !text.is_empty()).map(|text| {
            text.parse().map_err(|e| {
                Error::with(Kind::Usage, "DEADLINE is not a time of RFC 3339 such as 2030-01-01T00:00:00Z", e)
            })
        });
        Ok(Self {
            listen: SocketAddr::new(address, listen_port.unwrap_or(names::UPLOAD_PORT)),
            identity: Identity {
                certificate: Certificate::Files {
                    chain: given("TLS_CERT_FILE", cert_file)?.into(),
                    key: given("TLS_KEY_FILE", key_file)?.into(),
                },
                only_tls13: tls_min_version == "VersionTLS13",
                ciphers: tls_ciphers.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            },
            clients: Clients::optional(given("CLIENT_CERT_FILE", client_cert_file)?.into()),
            client_name: given("CLIENT_NAME", client_name)?,
            volume: volume::Config {
                contract: Contract::Environment,
                holds: Holds::Disk,
                place: place(&destination, &below)?,
                owner: Some(Owner { mode: names::DISK_MODE, id: names::QEMU_ID }),
                scratch: Some(below(names::SCRATCH_DIR)),
                // The bytes of two uploads may differ.
                remember: false,
                journal: None,
                size: image_size,
                overhead: filesystem_overhead,
                preallocate: preallocation,
                direct: true,
                engine: None,
                checksum: None,
                format: None,
                force: true,
                limits: Limits::default(),
            },
            deadline: deadline.transpose()?,
            owner_uid,
            termination_log: below(names::TERMINATION_LOG),
        })
    }
}

/// Where the disk goes. As for the importer the device's existence decides; a device that was named must be there.
fn place(destination: &str, below: &impl Fn(&str) -> PathBuf) -> Result<Place, Error> {
    let device = below(names::BLOCK_DEVICE);
    let disk = match destination {
        "" => below(names::DATA_DIR).join(names::DISK_FILE),
        names::BLOCK_DEVICE if !device.exists() => {
            let what = format!(
                "DESTINATION is the device {}, which does not exist: the pod needs the claim as volumeDevices",
                device.display()
            );
            return Err(Error::new(Kind::Target, what));
        }
        names::BLOCK_DEVICE => below(names::DATA_DIR).join(names::DISK_FILE),
        path => below(path),
    };
    let data = disk.parent().map_or_else(|| below(names::DATA_DIR), Path::to_owned);
    Ok(Place::Volume { data, disk, device })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> Server {
        let text = |text: &str| text.to_owned();
        Server {
            key_file: text("/k"),
            cert_file: text("/c"),
            client_cert_file: text("/ca"),
            client_name: text("client"),
            ..Server::default()
        }
    }

    #[test]
    fn an_upstream_pods_environment() {
        let config = Config::from_server(
            Server {
                image_size: Some(1 << 30),
                filesystem_overhead: 0.06,
                deadline: "2026-11-21T09:00:00Z".into(),
                tls_min_version: "VersionTLS13".into(),
                tls_ciphers: "A,B".into(),
                ..server()
            },
            Path::new("/"),
        )
        .unwrap();
        assert_eq!(config.listen.port(), 8443);
        assert!(config.identity.only_tls13 && config.deadline.is_some());
        assert_eq!(config.identity.ciphers, ["A", "B"]);
        assert_eq!((config.volume.size, config.volume.overhead), (Some(1 << 30), 0.06));
        let expected = Place::Volume {
            data: "/data".into(),
            disk: "/data/disk.img".into(),
            device: "/dev/cdi-block-volume".into(),
        };
        assert_eq!(config.volume.place, expected);
    }

    #[test]
    fn missing_and_malformed_variables_are_named() {
        for (server, word) in [
            (Server { key_file: String::new(), ..server() }, "TLS_KEY_FILE"),
            (Server { client_cert_file: String::new(), ..server() }, "CLIENT_CERT_FILE"),
            (Server { client_name: String::new(), ..server() }, "CLIENT_NAME"),
            (Server { deadline: "tomorrow".into(), ..server() }, "DEADLINE"),
            (Server { listen_address: "here".into(), ..server() }, "LISTEN_ADDRESS"),
            (Server { destination: names::BLOCK_DEVICE.into(), ..server() }, "does not exist"),
        ] {
            let error = Config::from_server(server, Path::new("/nowhere")).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
