//! The documents that lead from an image's name to its layers: index, manifest, and which of an index's entries fits.
//!
//! Pure: bytes in, choices out. Accepted are the OCI types and Docker's schema 2 (OCI image-spec 1.1, "manifest",
//! "image-index"); the content of a document determines its type, since media types may be left out. The caller that fetches
//! a document checks its digest with [`Descriptor::check`]. Not here: fetching.

use std::fmt;

use oci_client::manifest::{ImageIndexEntry, OciDescriptor, OciImageIndex, OciImageManifest};
use serde::Deserialize;
use serde::de::IgnoredAny;
use sha2::{Digest, Sha256, Sha512};

use crate::error::{Error, Kind};
use disk_image::volume::Checksum;

/// Largest document that is read; what registries take, too.
pub(crate) const DOCUMENT_MAX: u64 = 4 << 20;
/// Most layers of an image; container runtimes stop at 128.
pub(crate) const LAYERS_MAX: usize = 1024;
/// Indexes inside indexes.
const DEPTH_MAX: usize = 4;
/// The annotation that names an entry in an OCI layout.
const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The same by containerd and docker, with the whole name.
const IMAGE_NAME: &str = "io.containerd.image.name";

/// The name of a blob and its length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// "sha256:…" or "sha512:…", checked to be well formed.
    pub(crate) digest: String,
    /// Length in bytes.
    pub(crate) size: u64,
}

impl Descriptor {
    /// Takes a digest and a size from a document.
    ///
    /// # Errors
    /// A digest of another kind or form, or a negative size.
    pub(crate) fn new(digest: &str, size: i64) -> Result<Self, Error> {
        let (algorithm, hex) = digest.split_once(':').unwrap_or_default();
        let len = match algorithm {
            "sha256" => 64,
            "sha512" => 128,
            _ => 0,
        };
        let lower_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if len == 0 || hex.len() != len || !hex.bytes().all(lower_hex) {
            return Err(refused(
                "the manifest refers to a blob by a digest that is neither sha256 nor sha512; push the image again",
            ));
        }
        let size =
            u64::try_from(size).map_err(|_| refused(format!("the blob {digest} has a negative size")))?;
        Ok(Self { digest: digest.to_owned(), size })
    }

    /// Checks that `bytes` are the blob.
    ///
    /// # Errors
    /// [`Kind::Digest`] when they are not.
    pub(crate) fn check(&self, bytes: &[u8]) -> Result<(), Error> {
        let found = match self.digest.split_once(':') {
            Some(("sha512", _)) => format!("sha512:{}", hex(&Sha512::digest(bytes))),
            Some(_) | None => format!("sha256:{}", hex(&Sha256::digest(bytes))),
        };
        if found == self.digest {
            Ok(())
        } else {
            Err(Error::new(
                Kind::Digest,
                format!(
                    "the registry's manifest or configuration has the digest {found} instead of {}; push the image again if this repeats",
                    self.digest
                ),
            ))
        }
    }

    /// The digest as a checksum, which bytes are checked against as they pass.
    ///
    /// # Errors
    /// None in practice: the form was checked.
    pub(crate) fn checksum(&self) -> Result<Checksum, Error> {
        self.digest.parse().map_err(refused)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn refused(what: impl Into<String>) -> Error {
    Error::new(Kind::Refused, what)
}

/// Platform of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Platform {
    pub(crate) os: String,
    pub(crate) architecture: String,
    pub(crate) variant: Option<String>,
}

impl Platform {
    /// From "arm64", "arm64/v8" or "linux/arm64/v8"; this machine's when nothing is given. The system is Linux unless
    /// it is named, whatever the guest in the disk is.
    ///
    /// # Errors
    /// More parts than that, or empty ones.
    pub(crate) fn parse(text: Option<&str>) -> Result<Self, Error> {
        let Some(text) = text else {
            return Ok(Self {
                os: "linux".to_owned(),
                architecture: this_machine().to_owned(),
                variant: None,
            });
        };
        let parts: Vec<&str> = text.split('/').collect();
        let (os, architecture, variant) = match parts[..] {
            [architecture] => ("linux", architecture, None),
            [os @ ("linux" | "windows" | "darwin" | "freebsd"), architecture] => (os, architecture, None),
            [architecture, variant] => ("linux", architecture, Some(variant)),
            [os, architecture, variant] => (os, architecture, Some(variant)),
            _ => ("", "", None),
        };
        if os.is_empty() || architecture.is_empty() || variant == Some("") {
            return Err(Error::usage(format!(
                "\"{text}\" is not a platform: write an architecture such as amd64, or os/architecture/variant"
            )));
        }
        Ok(Self {
            os: os.to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.map(str::to_owned),
        })
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.iter().try_for_each(|variant| write!(f, "/{variant}"))
    }
}

/// Go's name of this machine's architecture, as image indexes use it.
fn this_machine() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}

/// A document.
#[derive(Debug)]
pub(crate) enum Document {
    /// A choice of manifests.
    Index(Vec<ImageIndexEntry>),
    /// One image.
    Image(Image),
}

/// An image's parts.
#[derive(Debug)]
pub(crate) struct Image {
    /// How a container of it is to be run; `None` when what is named there is no blob.
    pub(crate) config: Option<Descriptor>,
    /// Lowest first.
    pub(crate) layers: Vec<Descriptor>,
    /// Whether an index lists it for the platform, so that its configuration need not name the same one.
    pub(crate) listed: bool,
}

/// The environment that an image's configuration gives its containers, as "NAME=value"; empty when the document has none.
///
/// # Errors
/// When it is no configuration.
pub(crate) fn environment(config: &[u8]) -> Result<Vec<String>, Error> {
    #[derive(Deserialize)]
    struct Whole {
        #[serde(default)]
        config: Option<Run>,
    }
    #[derive(Deserialize)]
    struct Run {
        #[serde(default, rename = "Env")]
        env: Option<Vec<String>>,
    }
    let whole: Whole = serde_json::from_slice(config).map_err(|e| {
        Error::with(Kind::Refused, "the image's configuration is not valid JSON of that type", e)
    })?;
    Ok(whole.config.and_then(|run| run.env).unwrap_or_default())
}

/// That an image is for the platform that was asked for, by its configuration; one that names no architecture is for all.
///
/// # Errors
/// [`Kind::Refused`]: it is for another one, or this is no configuration.
pub(crate) fn is_for(config: &[u8], platform: &Platform) -> Result<(), Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Built {
        os: String,
        architecture: String,
        variant: String,
    }
    let built: Built = serde_json::from_slice(config)
        .map_err(|e| Error::with(Kind::Refused, "the image's configuration cannot be read", e))?;
    let same = |built: &str, wanted: &str| built.is_empty() || built == wanted;
    let fits = same(&built.os, &platform.os)
        && same(&built.architecture, &platform.architecture)
        && platform.variant.as_deref().is_none_or(|wanted| same(&built.variant, wanted));
    if fits {
        return Ok(());
    }
    let parts = [built.os, built.architecture, built.variant];
    let parts: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    Err(refused(format!("the image is for {}, and {platform} was asked for", parts.join("/"))))
}

/// Enough of a document to find its type.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Shape {
    schema_version: Option<u64>,
    manifests: Option<IgnoredAny>,
    layers: Option<IgnoredAny>,
    fs_layers: Option<IgnoredAny>,
}

/// Reads a document.
///
/// # Errors
/// [`Kind::Refused`] for anything that is neither an image nor an index of some.
pub(crate) fn parse(bytes: &[u8]) -> Result<Document, Error> {
    let damaged = |e| Error::with(Kind::Refused, "the image's manifest is not a valid document", e);
    let shape: Shape = serde_json::from_slice(bytes).map_err(damaged)?;
    match shape {
        Shape { manifests: Some(_), layers: None, .. } => {
            let index: OciImageIndex = serde_json::from_slice(bytes).map_err(damaged)?;
            Ok(Document::Index(index.manifests))
        }
        Shape { layers: Some(_), manifests: None, .. } => {
            let image: OciImageManifest = serde_json::from_slice(bytes).map_err(damaged)?;
            if image.layers.len() > LAYERS_MAX {
                return Err(refused(format!("the image has {} layers", image.layers.len())));
            }
            let layers = image.layers.iter().map(layer).collect::<Result<_, _>>()?;
            let config = Descriptor::new(&image.config.digest, image.config.size).ok();
            Ok(Document::Image(Image { config, layers, listed: false }))
        }
        Shape { fs_layers: Some(_), .. } | Shape { schema_version: Some(1), .. } => Err(refused(
            "the image's manifest is of Docker's old schema 1; push the image again with a current tool",
        )),
        Shape { .. } => Err(refused(
            "the reference does not name an image: the document has neither layers nor manifests",
        )),
    }
}

fn layer(layer: &OciDescriptor) -> Result<Descriptor, Error> {
    if layer.media_type.ends_with("+encrypted") {
        return Err(refused(format!(
            "the layer {} is encrypted; push the image without encryption",
            layer.digest
        )));
    }
    Descriptor::new(&layer.digest, layer.size)
}

/// From a first document to an image, by way of an index if it is one.
///
/// # Errors
/// When no entry fits, when a document is invalid, or the error of `fetch`. `fetch` returns a document with a verified
/// digest.
pub(crate) fn resolve(
    first: &[u8],
    platform: &Platform,
    mut fetch: impl FnMut(&Descriptor) -> Result<Vec<u8>, Error>,
) -> Result<Image, Error> {
    let mut document = parse(first)?;
    let mut listed = false;
    for _ in 0..DEPTH_MAX {
        match document {
            Document::Image(image) => return Ok(Image { listed, ..image }),
            Document::Index(entries) => {
                let (chosen, named) = choose(&entries, platform)?;
                listed |= named;
                document = parse(&fetch(&chosen)?)?;
            }
        }
    }
    Err(refused("the image's indexes are nested too deep; push the image with one index of manifests"))
}

/// The entry for `platform`. One that names no variant fits every variant; of several that fit, the first one does. An
/// index with a single entry that names no platform has no choice. With it, whether the entry names its platform.
fn choose(entries: &[ImageIndexEntry], platform: &Platform) -> Result<(Descriptor, bool), Error> {
    let fits = |entry: &&ImageIndexEntry| {
        entry.platform.as_ref().is_some_and(|found| {
            found.os.to_string() == platform.os
                && found.architecture.to_string() == platform.architecture
                && match (&found.variant, &platform.variant) {
                    (Some(found), Some(wanted)) => found == wanted,
                    (Some(_) | None, None) | (None, Some(_)) => true,
                }
        })
    };
    let only = match entries {
        [only] if only.platform.is_none() => Some(only),
        _ => None,
    };
    if let Some(entry) = entries.iter().find(fits).or(only) {
        return Ok((Descriptor::new(&entry.digest, entry.size)?, entry.platform.is_some()));
    }
    let offered: Vec<String> = entries
        .iter()
        .filter_map(|entry| entry.platform.as_ref())
        .take(20)
        .map(|found| {
            let variant = found.variant.as_ref().map(|variant| format!("/{variant}"));
            format!("{}/{}{}", found.os, found.architecture, variant.unwrap_or_default())
        })
        .collect();
    let offered = match offered.is_empty() {
        true => "its index names no platform".to_owned(),
        false => format!("it is there for: {}", offered.join(", ")),
    };
    Err(refused(format!("the image is not there for {platform}; {offered}")))
}

/// The image of an OCI layout's `index.json`: the one called `name`, or the only one, or the one for `platform`.
///
/// # Errors
/// When there is none, or no telling which.
pub(crate) fn in_layout(index: &[u8], name: Option<&str>, platform: &Platform) -> Result<Descriptor, Error> {
    let Document::Index(entries) = parse(index)? else {
        return Err(refused(
            "the archive's index.json is not an image index; write it with skopeo copy … oci-archive:FILE",
        ));
    };
    let named = |entry: &ImageIndexEntry| {
        let annotation =
            |key: &str| entry.annotations.as_ref().and_then(|all| all.get(key)).map(String::as_str);
        name.is_some() && (annotation(REF_NAME) == name || annotation(IMAGE_NAME) == name)
    };
    let chosen = match (name, &entries[..]) {
        (Some(name), entries) => entries.iter().find(|entry| named(entry)).ok_or_else(|| {
            refused(format!(
                "the archive holds no image called {name}; leave the name out if it holds one image"
            ))
        })?,
        (None, [only]) => only,
        (None, []) => return Err(refused("the archive holds no image")),
        (None, entries) => return choose(entries, platform).map(|(chosen, _)| chosen),
    };
    Descriptor::new(&chosen.digest, chosen.size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(n: u8) -> String {
        format!("sha256:{}", format!("{n:02x}").repeat(32))
    }

    fn index(platforms: &[(&str, &str)]) -> Vec<u8> {
        let entries: Vec<String> = platforms
            .iter()
            .zip(0..)
            .map(|((arch, variant), n)| {
                let variant = if variant.is_empty() { String::new() } else { format!(r#","variant":"{variant}""#) };
                format!(
                    r#"{{"mediaType":"m","digest":"{}","size":2,"platform":{{"os":"linux","architecture":"{arch}"{variant}}}}}"#,
                    digest(n)
                )
            })
            .collect();
        format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, entries.join(",")).into_bytes()
    }

    fn manifest(layers: &str) -> Vec<u8> {
        format!(
            r#"{{"schemaVersion":2,"config":{{"mediaType":"c","digest":"{}","size":2}},"layers":[{layers}]}}"#,
            digest(9)
        )
        .into_bytes()
    }

    #[test]
    fn platforms() {
        #[rustfmt::skip]
        let table = [
            (Some("arm64"), Some("linux/arm64")),
            (Some("arm/v7"), Some("linux/arm/v7")),
            (Some("windows/amd64"), Some("windows/amd64")),
            (Some("linux/arm/v6"), Some("linux/arm/v6")),
            (Some("linux/arm/"), None),
            (Some(""), None),
            (Some("a/b/c/d"), None),
        ];
        for (text, want) in table {
            assert_eq!(Platform::parse(text).ok().map(|p| p.to_string()).as_deref(), want, "{text:?}");
        }
        let here = Platform::parse(None).unwrap();
        assert!(here.os == "linux" && here.architecture != "x86_64");
    }

    #[test]
    fn the_entry_that_fits_is_chosen() {
        let all = index(&[("amd64", ""), ("arm", "v6"), ("arm", "v7"), ("unknown", "")]);
        #[rustfmt::skip]
        let table = [
            ("amd64", Some(0)), ("arm", Some(1)), ("arm/v7", Some(2)), ("arm/v8", None),
            ("amd64/v2", Some(0)), ("s390x", None), ("windows/amd64", None),
        ];
        for (platform, want) in table {
            let platform = Platform::parse(Some(platform)).unwrap();
            let mut asked = Vec::new();
            let layers = resolve(&all, &platform, |descriptor| {
                asked.push(descriptor.digest.clone());
                Ok(manifest(""))
            });
            assert_eq!(layers.is_ok(), want.is_some(), "{platform}");
            assert_eq!(asked, want.map(digest).into_iter().collect::<Vec<_>>(), "{platform}");
            if let Err(error) = layers {
                assert!(error.to_string().contains("linux/amd64, linux/arm/v6, linux/arm/v7"), "{error}");
            }
        }
    }

    #[test]
    fn documents() {
        let layer = format!(r#"{{"mediaType":"l","digest":"{}","size":7}}"#, digest(1));
        assert!(matches!(parse(&manifest(&layer)), Ok(Document::Image(i)) if i.layers[0].size == 7));
        #[rustfmt::skip]
        let table = [
            (manifest(&layer.replace("sha256:", "md5:")), "neither sha256 nor sha512"),
            (manifest(&layer.replace(":7", ":-7")), "negative"),
            (manifest(&layer.replace("\"l\"", "\"application/vnd.oci.image.layer.v1.tar+gzip+encrypted\"")), "encrypted"),
            (manifest(&layer.replace("sha256:01", "sha256:../")), "neither sha256 nor sha512"),
            (manifest(&vec![layer; LAYERS_MAX + 1].join(",")), "1025 layers"),
            (br#"{"schemaVersion":1,"fsLayers":[]}"#.to_vec(), "schema 1"),
            (b"{}".to_vec(), "neither layers nor manifests"),
            (b"<html>".to_vec(), "not a valid document"),
            (br#"{"layers":7}"#.to_vec(), "not a valid document"),
        ];
        for (bytes, words) in table {
            let error = parse(&bytes).unwrap_err();
            assert!(error.kind() == Kind::Refused && error.to_string().contains(words), "{error}");
        }
        let endless = index(&[("amd64", "")]);
        let amd64 = Platform::parse(Some("amd64")).unwrap();
        assert!(
            resolve(&endless, &amd64, |_| Ok(endless.clone())).unwrap_err().to_string().contains("indexes")
        );
    }

    #[test]
    fn names_in_a_layout() {
        let entry = |n: u8, annotations: &str| {
            format!(
                r#"{{"mediaType":"m","digest":"{}","size":2,"annotations":{{{annotations}}}}}"#,
                digest(n)
            )
        };
        let two = format!(
            r#"{{"schemaVersion":2,"manifests":[{},{}]}}"#,
            entry(1, r#""org.opencontainers.image.ref.name":"v1""#),
            entry(2, r#""io.containerd.image.name":"host/a:v2""#)
        );
        let here = Platform::parse(None).unwrap();
        let find = |name| in_layout(two.as_bytes(), name, &here).map(|d| d.digest).ok();
        assert_eq!(find(Some("v1")), Some(digest(1)));
        assert_eq!(find(Some("host/a:v2")), Some(digest(2)));
        assert_eq!(find(Some("v3")), None);
        assert_eq!(find(None), None);
        let one = format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, entry(1, ""));
        assert!(in_layout(one.as_bytes(), None, &here).is_ok());
        assert!(in_layout(br#"{"manifests":[],"schemaVersion":2}"#, None, &here).is_err());
    }

    #[test]
    fn environments() {
        let env = |text: &str| environment(text.as_bytes()).ok();
        assert_eq!(env(r#"{"config":{"Env":["A=1","B"]}}"#), Some(vec!["A=1".to_owned(), "B".to_owned()]));
        for text in ["{}", r#"{"config":null}"#, r#"{"config":{}}"#, r#"{"config":{"Env":null}}"#] {
            assert_eq!(env(text), Some(Vec::new()), "{text}");
        }
        assert_eq!(env(r#"{"config":{"Env":"A=1"}}"#), None);
    }

    #[test]
    fn digests_are_compared() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let empty = Descriptor::new(empty, 0).unwrap();
        assert!(empty.check(b"").is_ok());
        assert_eq!(empty.check(b"x").unwrap_err().kind(), Kind::Digest);
        let long = format!("sha512:{}", "0".repeat(128));
        assert_eq!(Descriptor::new(&long, 0).unwrap().check(b"").unwrap_err().kind(), Kind::Digest);
    }

    #[test]
    fn an_image_for_another_platform_is_refused() {
        let wanted = |text: &str| Platform::parse(Some(text)).unwrap();
        let arm = br#"{"os":"linux","architecture":"arm64","variant":"v8","config":{}}"#;
        is_for(arm, &wanted("arm64")).unwrap();
        is_for(arm, &wanted("arm64/v8")).unwrap();
        is_for(b"{}", &wanted("amd64")).unwrap();
        for other in ["amd64", "arm64/v7", "windows/arm64"] {
            let error = is_for(arm, &wanted(other)).unwrap_err().to_string();
            assert!(error.contains("for linux/arm64/v8"), "{error}");
        }
    }
}
