//! The proxy as arguments and environment describe it: one checked [`Config`]. Not here: the listeners.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use api::names;
use serve::failure::{Error, Kind, Result};
use serve::tls::{Authorities, Certificate, Clients, Identity};

use crate::args::Serve;
use crate::cluster::Reach;
use crate::connect::Own;
use crate::downloads::Folders;
use crate::token_keys::Origin;

/// One proxy.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) identity: Identity,
    /// File with the TLS profile of the server.
    pub(crate) profile: PathBuf,
    pub(crate) reach: Reach,
    /// ConfigMap with the authorities of upload servers.
    pub(crate) bundle: String,
    pub(crate) own: Own,
    pub(crate) keys: Origin,
    /// Where polls are answered, and the authorities of the operator's certificate.
    pub(crate) polls: Option<(SocketAddr, Clients)>,
    /// Where clients are served, and from which folders.
    pub(crate) downloads: Option<(SocketAddr, Folders)>,
}

impl Config {
    /// The proxy that was asked for.
    ///
    /// # Errors
    /// An argument or variable is missing.
    pub(crate) fn from_args(serve: Serve) -> Result<Self> {
        // Exhaustive: a new argument is given a meaning here or does not compile.
        let Serve {
            kubeconfig,
            server,
            server_cert_file,
            server_key_file,
            tls_profile_file,
            upload_client_cert_file,
            upload_client_key_file,
            upload_server_ca_bundle_config_map,
            apiserver_public_key,
            apiserver_public_key_file,
            apiserver_revoked_keys_file,
            listen,
            poll_listen,
            poll_client_ca_file,
            downloads_listen,
            clients_folder,
            own_clients_folder,
        } = serve;
        if apiserver_public_key.is_none() && apiserver_public_key_file.is_none() {
            let what = "APISERVER_PUBLIC_KEY is not set, nor APISERVER_PUBLIC_KEY_FILE";
            return Err(Error::new(Kind::Usage, what));
        }
        Ok(Self {
            listen,
            identity: Identity {
                certificate: Certificate::Files { chain: server_cert_file, key: server_key_file },
                only_tls13: false,
                ciphers: Vec::new(),
            },
            profile: tls_profile_file,
            reach: Reach { kubeconfig, server },
            bundle: upload_server_ca_bundle_config_map,
            own: Own {
                certificate: upload_client_cert_file,
                key: upload_client_key_file,
                hosts: std::env::var_os(names::PROXY_HOSTS_VARIABLE).map(PathBuf::from),
                last: Arc::default(),
            },
            keys: Origin {
                text: apiserver_public_key,
                file: apiserver_public_key_file,
                revoked: apiserver_revoked_keys_file,
            },
            polls: poll_listen.zip(poll_client_ca_file).map(|(listen, authorities)| {
                let authorities = Authorities::File(authorities);
                (listen, Clients { authorities, required: true })
            }),
            downloads: downloads_listen
                .map(|listen| (listen, Folders { supplied: clients_folder, own: own_clients_folder })),
        })
    }
}
