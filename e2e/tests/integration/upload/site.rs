//! The objects that CDI's operator makes: keys, certificates and configuration by upstream's names, the API of tokens, and
//! the proxy, by our manifests.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;

use api::upload::PROXY_CLIENT;
use api::upload::token::Signer;
use base64::Engine;
use e2e::Cluster;
use e2e::pki::Authority;
use reqwest::{Certificate, Client};
use serde_json::{Value, json};

use crate::upload::objects::{create, get, until};
use crate::upload::{CLUSTER, tokens};

/// Where the proxy lives.
pub(crate) const NAMESPACE: &str = "cdi";
/// The proxy's name, as CDIConfig has it: without a scheme.
pub(crate) const PROXY: &str = "cdi-uploadproxy.cdi.svc";

/// The installation.
pub(crate) struct Site {
    /// Signs all certificates.
    pub(crate) authority: Authority,
    /// The address of the proxy's Service.
    pub(crate) address: Ipv4Addr,
}

/// A Secret of one certificate.
pub(crate) fn certificate(authority: &Authority, secret: &str, name: &str, hosts: &[String]) -> Value {
    let identity = authority.sign(name, None, hosts).unwrap();
    json!({
        "metadata": {"name": secret},
        "stringData": {
            "tls.crt": identity.certificate, "tls.key": identity.key, "ca.crt": authority.certificate(),
        },
    })
}

fn apply(cluster: &Cluster, text: &str) {
    let mut kubectl = cluster
        .kubectl()
        .args(["apply", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    kubectl.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(kubectl.wait().unwrap().success());
}

#[track_caller]
fn kubectl(cluster: &Cluster, arguments: &[&str]) {
    let said = cluster.kubectl().args(arguments).output().unwrap();
    assert!(
        said.status.success(),
        "{arguments:?}: {}\n{}",
        String::from_utf8_lossy(&said.stderr),
        crate::upload::objects::described()
    );
}

impl Site {
    pub(crate) fn install(cluster: &Cluster) -> Self {
        cluster.create_namespace(NAMESPACE, "restricted").unwrap();
        apply(cluster, include_str!("cdi.yaml"));
        kubectl(cluster, &["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"]);
        let authority = Authority::new("the test's CDI").unwrap();
        let size = rcgen::RsaKeySize::_2048;
        let key = rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size).unwrap();
        create(
            "Secret",
            NAMESPACE,
            json!({
                "metadata": {"name": "cdi-api-signing-key"},
                "stringData": {"id_rsa": key.serialize_pem(), "id_rsa.pub": key.public_key_pem()},
            }),
        );
        let server =
            certificate(&authority, "cdi-uploadproxy-server-cert", "cdi-uploadproxy", &[PROXY.into()]);
        create("Secret", NAMESPACE, server);
        create(
            "Secret",
            NAMESPACE,
            certificate(&authority, "cdi-uploadserver-client-cert", PROXY_CLIENT, &[]),
        );
        create(
            "ConfigMap",
            NAMESPACE,
            json!({
                "metadata": {"name": "cdi-uploadserver-signer-bundle"},
                "data": {"ca-bundle.crt": authority.certificate()},
            }),
        );
        let config = json!({"metadata": {"name": "config"}, "spec": {}, "status": {"uploadProxyURL": PROXY}});
        create("CDIConfig", "", config);
        token_api(cluster, &authority, Signer::from_pem(&key.serialize_pem()).unwrap());

        let manifests =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../uploadserver/manifests/uploadproxy.yaml");
        apply(cluster, &fs::read_to_string(manifests).unwrap());
        kubectl(
            cluster,
            &["-n", NAMESPACE, "rollout", "status", "deployment/cdi-uploadproxy", "--timeout=120s"],
        );
        let service = get("Service", NAMESPACE, "cdi-uploadproxy").unwrap();
        let address = service["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
        Self { authority, address }
    }

    /// An outside client that trusts the proxy's authority.
    pub(crate) fn client(&self) -> Client {
        let authority = Certificate::from_pem(self.authority.certificate().as_bytes()).unwrap();
        Client::builder()
            .no_proxy()
            .tls_certs_only([authority])
            .resolve(PROXY, SocketAddr::from((self.address, 443)))
            .build()
            .unwrap()
    }
}

/// The aggregated API of tokens, on the host.
fn token_api(cluster: &Cluster, authority: &Authority, signer: Signer) {
    let identity = authority.sign("cdi-api", None, &["cdi-api.cdi.svc".into()]).unwrap();
    let front = fs::read_to_string(cluster.place().path("pki/front-proxy-ca.crt")).unwrap();
    let address = tokens::serve(cluster.place().host_address(), &identity, &front, signer);
    let port = address.port();
    create(
        "Service",
        NAMESPACE,
        json!({"metadata": {"name": "cdi-api"}, "spec": {"ports": [{"port": 443, "targetPort": port}]}}),
    );
    create(
        "Endpoints",
        NAMESPACE,
        json!({
            "metadata": {"name": "cdi-api"},
            "subsets": [{"addresses": [{"ip": address.ip()}], "ports": [{"port": port}]}],
        }),
    );
    let bundle = base64::engine::general_purpose::STANDARD.encode(authority.certificate());
    let name = "v1beta1.upload.cdi.kubevirt.io";
    create(
        "APIService",
        "",
        json!({
            "metadata": {"name": name},
            "spec": {
                "group": "upload.cdi.kubevirt.io", "version": "v1beta1",
                "groupPriorityMinimum": 1000, "versionPriority": 15, "caBundle": bundle,
                "service": {"name": "cdi-api", "namespace": NAMESPACE, "port": 443},
            },
        }),
    );
    until("the API of tokens is there", || {
        let found = get("APIService", "", name)?;
        let conditions = found["status"]["conditions"].as_array()?.clone();
        conditions.iter().any(|one| one["type"] == "Available" && one["status"] == "True").then_some(())
    });
    // Authorization is the cluster's, as for every kind.
    let may = |user: &str| {
        let asked = ["auth", "can-i", "create", "uploadtokenrequests.upload.cdi.kubevirt.io", "--as", user];
        CLUSTER.kubectl().args(asked).output().unwrap().status.success()
    };
    assert!(!may("somebody"));
}
