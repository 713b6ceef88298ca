//! Keys and certificates of one cluster, and the kubeconfig files that use them. They die with its state folder.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// A certificate authority.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, as PEM text.
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The key, PKCS #8.
    pub key: String,
}

impl Authority {
    /// A new one.
    ///
    /// # Errors
    /// When the system gives no random numbers.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, name);
        Ok(Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate()?)? })
    }

    /// Its own certificate, as PEM text.
    pub fn certificate(&self) -> String {
        self.issuer.pem()
    }

    /// Its key, as PEM text.
    pub fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Signs a certificate for a client and server. Kubernetes takes `name` as a user's name and `organization` as its
    /// group; `hosts` are names and addresses.
    ///
    /// # Errors
    /// When a host's name is none.
    pub fn sign(&self, name: &str, organization: Option<&str>, hosts: &[String]) -> Result<Identity> {
        let mut params = CertificateParams::new(hosts)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(organization) = organization {
            params.distinguished_name.push(DnType::OrganizationName, organization);
        }
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// The files of one cluster.
pub(crate) struct Files {
    folder: PathBuf,
}

impl Files {
    /// Makes all of them in `folder`. `server` is the API server's address for everyone, `hosts` are all names by which
    /// it is called; `nodes` are the names and addresses of the kubelets.
    pub(crate) fn create(
        folder: &Path,
        server: &str,
        hosts: &[String],
        nodes: &[(String, Ipv4Addr)],
    ) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let files = Self { folder: folder.to_owned() };
        let cluster = Authority::new("kubernetes")?;
        let front_proxy = Authority::new("front-proxy-ca")?;
        files.write("ca.crt", &cluster.certificate())?;
        files.write("ca.key", &cluster.key())?;
        files.write("front-proxy-ca.crt", &front_proxy.certificate())?;
        files.identity("front-proxy", &front_proxy.sign("front-proxy-client", None, &[])?)?;
        files.identity("apiserver", &cluster.sign("kube-apiserver", None, hosts)?)?;
        // Users and groups that the API server's built-in roles name.
        files.user(&cluster, server, "admin", "admin", Some("system:masters"), &[])?;
        for (node, address) in nodes {
            let hosts = [node.clone(), address.to_string()];
            let user = format!("system:node:{node}");
            files.user(&cluster, server, &format!("kubelet-{node}"), &user, Some("system:nodes"), &hosts)?;
        }
        for (file, user) in [
            ("controller-manager", "system:kube-controller-manager"),
            ("scheduler", "system:kube-scheduler"),
            ("proxy", "system:kube-proxy"),
        ] {
            files.user(&cluster, server, file, user, None, &[])?;
        }
        let accounts = KeyPair::generate()?;
        files.write("accounts.key", &accounts.serialize_pem())?;
        files.write("accounts.pub", &accounts.public_key_pem())?;
        Ok(files)
    }

    fn identity(&self, name: &str, identity: &Identity) -> Result<()> {
        self.write(&format!("{name}.crt"), &identity.certificate)?;
        self.write(&format!("{name}.key"), &identity.key)
    }

    fn user(
        &self,
        authority: &Authority,
        server: &str,
        file: &str,
        user: &str,
        group: Option<&str>,
        hosts: &[String],
    ) -> Result<()> {
        self.identity(file, &authority.sign(user, group, hosts)?)?;
        let pki = self.folder.display();
        let config = format!(
            "apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: \"{server}\", certificate-authority: {pki}/ca.crt}}}}]
users: [{{name: u, user: {{client-certificate: {pki}/{file}.crt, client-key: {pki}/{file}.key}}}}]
contexts: [{{name: ferrovirt, context: {{cluster: c, user: u}}}}]
current-context: ferrovirt
"
        );
        self.write(&format!("../{file}.kubeconfig"), &config)
    }

    fn write(&self, name: &str, content: &str) -> Result<()> {
        Ok(fs::write(self.folder.join(name), content)?)
    }
}
