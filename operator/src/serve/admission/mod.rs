//! Admission webhooks, on every replica: defaults, refusals and warnings when users write our objects.
//!
//! ```text
//!  API server ─► AdmissionReview ─► path ─► Review ─┬─► machine, instance, set: defaults, rules, reserved fields
//!                                                   ├─► volume: rules of storage; the right to clone, asked as the user
//!                                                   ├─► hyperconverged, hostpath, placed: rules
//!                                                   └─► uninstall: deletion while workloads exist
//! ```
//!
//! Nothing is written here, so a dry run is answered like any other request. The decisions are pure ([`machine`],
//! [`instance`], [`set`], [`volume`], [`uninstall`]); this file reads requests and asks the API server.
//!
//! Not here: schemas, which the API server checks; the rules of a guest (lib/virt); webhook configurations
//! ([`crate::install`]).

mod answer;
mod created;
mod hostpath;
mod hyperconverged;
mod identity;
mod instance;
mod labels;
mod machine;
mod placed;
mod set;
mod settings;
mod uninstall;
mod volume;

#[cfg(test)]
mod every_field;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::kind::Kind;
use api::kubevirt::VirtualMachine;
use cluster::review::{Answer, Request};
use cluster::{Cache, Client, Key, Resource, Scope};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use serve::metrics::Page;
use serve::route::{self, Call, Router};
use virt::admission::{Identity, Settings};
use virt::instancetype::{self, Flavor};
use virt::validate;

use crate::fill::fill;
use crate::flavor::{self, Unusable};
use crate::install;
use crate::storage::clone::{authorize, cloned, permit};
use crate::storage::offered::Offered;
use crate::storage::{keys, signers};
use created::Created;
use settings::{Configuration, Permitted};
use uninstall::{Platform, Workload};

/// Longest review: an update carries two objects of at most 3 MiB each, the API server's limit.
const MOST_BODY: usize = 7 << 20;
/// Longest wait for the KubeVirt object after a start. The API server waits five seconds for the answer.
const SETTINGS_WAIT: Duration = Duration::from_secs(3);

const HOST_PATHS: Resource =
    Resource::cluster("hostpathprovisioner.kubevirt.io", "v1beta1", "hostpathprovisioners");
const HYPER_CONVERGED: Resource = Resource::namespaced("hco.kubevirt.io", "v1", "hyperconvergeds");
const NAMESPACES: Resource = Resource::cluster("", "v1", "namespaces");

/// A webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Review {
    MutateMachine,
    ValidateMachine,
    MutateInstance,
    ValidateInstance,
    ValidateSet,
    ValidatePool,
    RefusePreset,
    AuthorizeVolume,
    ValidateVolume,
    ValidateCron,
    ValidateSource,
    ValidateTransfer,
    RenderClaim,
    CheckKubeVirt,
    CheckCdi,
    MutateHyperConverged,
    ValidateHyperConverged,
    DeleteNamespace,
    ValidateHostPath,
}

impl Review {
    const ALL: [Self; 19] = [
        Self::MutateMachine,
        Self::ValidateMachine,
        Self::MutateInstance,
        Self::ValidateInstance,
        Self::ValidateSet,
        Self::ValidatePool,
        Self::RefusePreset,
        Self::AuthorizeVolume,
        Self::ValidateVolume,
        Self::ValidateCron,
        Self::ValidateSource,
        Self::ValidateTransfer,
        Self::RenderClaim,
        Self::CheckKubeVirt,
        Self::CheckCdi,
        Self::MutateHyperConverged,
        Self::ValidateHyperConverged,
        Self::DeleteNamespace,
        Self::ValidateHostPath,
    ];

    /// Its path, as the installed configurations name it.
    fn path(self) -> &'static str {
        match self {
            Self::MutateMachine => "/virtualmachines-mutate",
            Self::ValidateMachine => "/virtualmachines-validate",
            Self::MutateInstance => "/virtualmachineinstances-mutate",
            Self::ValidateInstance => "/virtualmachineinstances-validate",
            Self::ValidateSet => "/virtualmachinereplicaset-validate",
            Self::ValidatePool => "/virtualmachinepool-validate",
            Self::RefusePreset => "/vmipreset-validate",
            Self::AuthorizeVolume => "/datavolume-mutate",
            Self::ValidateVolume => "/datavolume-validate",
            Self::ValidateCron => "/dataimportcron-validate",
            Self::ValidateSource => "/populator-validate",
            Self::ValidateTransfer => "/objecttransfer-validate",
            Self::RenderClaim => "/pvc-mutate",
            Self::CheckKubeVirt => "/kubevirts-validate",
            Self::CheckCdi => "/cdi-validate",
            Self::MutateHyperConverged => "/mutate-hco-kubevirt-io-v1-hyperconverged",
            Self::ValidateHyperConverged => "/validate-hco-kubevirt-io-v1-hyperconverged",
            Self::DeleteNamespace => "/mutate-ns-hco-kubevirt-io",
            Self::ValidateHostPath => "/validate-hostpathprovisioner-kubevirt-io-v1beta1-hostpathprovisioner",
        }
    }

    /// The resources that it reviews.
    fn resources(self) -> &'static [&'static str] {
        match self {
            Self::MutateMachine | Self::ValidateMachine => &["virtualmachines"],
            Self::MutateInstance | Self::ValidateInstance => &["virtualmachineinstances"],
            Self::ValidateSet => &["virtualmachineinstancereplicasets"],
            Self::ValidatePool => &["virtualmachinepools"],
            Self::RefusePreset => &["virtualmachineinstancepresets"],
            Self::AuthorizeVolume | Self::ValidateVolume => &["datavolumes"],
            Self::ValidateCron => &["dataimportcrons"],
            Self::ValidateSource => &["volumeimportsources", "volumeuploadsources"],
            Self::ValidateTransfer => &["objecttransfers"],
            Self::RenderClaim => &["persistentvolumeclaims"],
            Self::CheckKubeVirt => &["kubevirts"],
            Self::CheckCdi => &["cdis"],
            Self::MutateHyperConverged | Self::ValidateHyperConverged => &["hyperconvergeds"],
            Self::DeleteNamespace => &["namespaces"],
            Self::ValidateHostPath => &["hostpathprovisioners"],
        }
    }
}

/// State that reviews share.
pub(super) struct Admission {
    client: Client,
    /// Namespace of the installation.
    namespace: String,
    configuration: Cache<Configuration>,
    /// User names of the platform's own accounts.
    own: Vec<String>,
    created: Created,
}

impl Admission {
    /// Follows the KubeVirt object from now on; the levels of the process's log are the object's.
    pub(super) fn start(client: &Client, namespace: &str) -> Self {
        for kind in [Kind::VirtualMachine, Kind::VirtualMachineInstance] {
            validate::prepare(kind);
        }
        let own = install::own_users(namespace);
        let configuration = settings::follow(client);
        tokio::spawn(settings::keep_levels(configuration.clone()));
        let created = Created::default();
        Self { client: client.clone(), namespace: namespace.to_owned(), configuration, own, created }
    }

    /// Adds the metrics of admission.
    pub(super) fn measure(&self, page: &mut Page) {
        self.created.write(page);
    }

    /// Whether the KubeVirt object switches a feature gate on that is off by default.
    pub(super) fn gate(&self, name: &str) -> bool {
        settings::gate(&self.configuration, name)
    }

    async fn review(&self, review: Review, request: &Request) -> cluster::Result<Answer> {
        let own = self.own.contains(&request.user_info.username);
        Ok(match review {
            Review::MutateMachine => match self.defaults().await {
                Ok((settings, identity)) => self.mutate_machine(request, own, &settings, &identity).await?,
                Err(refusal) => refusal,
            },
            Review::MutateInstance => match self.defaults().await {
                Ok((settings, identity)) => {
                    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                    instance::mutate(request, own, &settings, &identity, now.as_secs())
                }
                Err(refusal) => refusal,
            },
            Review::ValidateMachine => self.validate_machine(request, own).await?,
            Review::ValidateInstance => match self.permitted().await {
                Ok(permitted) => instance::validate(request, own, &permitted),
                Err(refusal) => refusal,
            },
            Review::ValidateSet => match self.permitted().await {
                Ok(permitted) => set::validate_set(request, own, &permitted),
                Err(refusal) => refusal,
            },
            Review::ValidatePool => self.validate_pool(request, own).await?,
            Review::RefusePreset => instance::preset_refused(),
            Review::AuthorizeVolume => self.authorize(request, own).await?,
            Review::ValidateVolume
            | Review::ValidateCron
            | Review::ValidateSource
            | Review::ValidateTransfer => volume::validate(request),
            Review::RenderClaim => volume::rendered(request, &Offered::read(&self.client).await?),
            Review::CheckKubeVirt if request.operation == "DELETE" => {
                self.delete(Platform::KubeVirt, request).await?
            }
            Review::CheckKubeVirt => placed::validate(request, placed::KUBEVIRT),
            Review::CheckCdi if request.operation == "DELETE" => self.delete(Platform::Cdi, request).await?,
            Review::CheckCdi => placed::validate(request, placed::CDI),
            Review::MutateHyperConverged => hyperconverged::mutate(request),
            Review::ValidateHyperConverged if request.operation == "DELETE" => {
                self.delete(Platform::HyperConverged, request).await?
            }
            Review::ValidateHyperConverged => hyperconverged::validate(request, &self.namespace),
            Review::DeleteNamespace => self.delete_namespace(request).await?,
            Review::ValidateHostPath => self.validate_host_path(request).await?,
        })
    }

    /// Fills in a VM, with what its instance type and preference are inferred from and what the preference prefers. The
    /// platform's policy may write both into the template.
    async fn mutate_machine(
        &self,
        request: &Request,
        own: bool,
        settings: &Settings,
        identity: &Identity,
    ) -> cluster::Result<Answer> {
        let mut flavor = Flavor::default();
        let mut object = request.object.clone();
        if !own && machine::names_flavor(request) {
            let inferred = self.infer(&request.namespace, &mut object).await;
            match inferred {
                Ok(found) => flavor = found,
                Err(Unusable::Failed(error)) => return Err(error),
                Err(Unusable::Refused { which, text }) => return Ok(machine::inference_failed(which, text)),
            }
        }
        let policy = settings::reference_policy(&self.configuration);
        Ok(machine::mutate(request, object, own, settings, identity, &flavor, policy))
    }

    /// Completes and infers references in `object`. The preference found is a default only: whether it exists is checked
    /// by the validating webhook.
    async fn infer(&self, namespace: &str, object: &mut Value) -> Result<Flavor, Unusable> {
        let Ok(mut machine) = VirtualMachine::deserialize(&*object) else { return Ok(Flavor::default()) };
        flavor::infer(&self.client, namespace, &mut machine).await?;
        instancetype::complete(&mut machine);
        fill::<VirtualMachine>(object, |filled| {
            filled.spec.instancetype.clone_from(&machine.spec.instancetype);
            filled.spec.preference.clone_from(&machine.spec.preference);
            filled.spec.template.spec.domain.memory.clone_from(&machine.spec.template.spec.domain.memory);
        });
        match flavor::flavor(&self.client, namespace, &machine).await {
            Ok(found) => Ok(found),
            Err(Unusable::Refused { .. }) => Ok(Flavor::default()),
            Err(failed) => Err(failed),
        }
    }

    /// Checks the template of a pool like its VMs, with instance type and preference as far as they exist already.
    async fn validate_pool(&self, request: &Request, own: bool) -> cluster::Result<Answer> {
        let mut member = set::member(&request.object);
        let mut flavor = Some(Flavor::default());
        // The references of the copy are completed, as those of VMs are.
        if !own && !machine::is_settled(request) && machine::has_flavor(&member) {
            flavor = match self.infer(&request.namespace, &mut member).await {
                Ok(found) => (!found.is_empty()).then_some(found),
                Err(Unusable::Failed(error)) => return Err(error),
                Err(Unusable::Refused { .. }) => None,
            };
        }
        Ok(match self.permitted().await {
            Ok(permitted) => set::validate_pool(request, own, &member, flavor.as_ref(), &permitted),
            Err(refusal) => refusal,
        })
    }

    /// Checks a VM as its instances will be: with instance type and preference applied.
    async fn validate_machine(&self, request: &Request, own: bool) -> cluster::Result<Answer> {
        let mut flavor = Flavor::default();
        if !own && machine::names_flavor(request) {
            if let Some(refusal) = machine::malformed(&request.object) {
                return Ok(refusal);
            }
            if let Ok(read) = VirtualMachine::deserialize(&request.object) {
                flavor = match flavor::flavor(&self.client, &request.namespace, &read).await {
                    Ok(found) => found,
                    Err(Unusable::Failed(error)) => return Err(error),
                    Err(Unusable::Refused { which, text }) => return Ok(machine::absent(which, &text)),
                };
            }
        }
        let answer = match self.permitted().await {
            Ok(permitted) => machine::validate(request, own, &flavor, &permitted),
            Err(refusal) => refusal,
        };
        self.created.count(request, &answer);
        Ok(answer)
    }

    /// The defaults of the cluster, and what a new guest is identified by. Defaults stay in the objects that get them, so
    /// none are given before the KubeVirt object was read.
    async fn defaults(&self) -> Result<(Settings, Identity), Answer> {
        self.synced().await?;
        let identity = identity::identity().ok_or_else(|| {
            Answer::refuse(500, "InternalError", "the operating system gives no random numbers; retry")
        })?;
        Ok((settings::settings(&self.configuration), identity))
    }

    /// The permissions of guests.
    async fn permitted(&self) -> Result<Permitted, Answer> {
        self.synced().await?;
        Ok(settings::permitted(&self.configuration))
    }

    /// Waits until the KubeVirt object was read; a refusal if that takes long.
    async fn synced(&self) -> Result<(), Answer> {
        if self.configuration.is_synced() {
            return Ok(());
        }
        let synced = tokio::time::timeout(SETTINGS_WAIT, self.configuration.synced()).await;
        synced.map(drop).map_err(|_| {
            let text = "the KubeVirt object cannot be read yet; try again";
            Answer::refuse(503, "ServiceUnavailable", text)
        })
    }

    /// Whether the requesting user may clone what a new DataVolume names.
    async fn authorize(&self, request: &Request, own: bool) -> cluster::Result<Answer> {
        if request.operation != "CREATE" {
            return Ok(Answer::allow());
        }
        let spec = &request.object["spec"];
        let origin = match cloned::origin(&self.client, spec, &request.namespace).await? {
            Ok(Some(origin)) => origin,
            Ok(None) => return Ok(Answer::allow()),
            Err(missing) => return Ok(volume::absent(request, missing.name())),
        };
        let needs = authorize::needs(&origin, &request.namespace);
        if needs == authorize::Needs::Nothing {
            return Ok(Answer::allow());
        }
        // Restored where the source's namespace is not: there is nothing to clone, and without a token nothing will be.
        if cloned::needs_no_source(&request.object) {
            let namespace = Key::cluster(&origin.namespace);
            if self.client.find_cached::<Value>(NAMESPACES, &namespace).await?.is_none() {
                return Ok(Answer::allow());
            }
        }
        let (keys, now) = (keys::read(&self.client, &self.namespace).await?, signers::now());
        // The platform's accounts may clone everything, so they must not do so for others: the VM controller asks as the
        // VM's ServiceAccount, and shows the answer as a token.
        let allowed = match own {
            true => volume::shown_token(request)
                .and_then(|token| keys.verify(token, now).ok())
                .is_some_and(|claims| volume::token_fits(&claims, &origin, request)),
            false => permit::allowed(&self.client, &request.user_info, &origin, &request.namespace).await?,
        };
        if !allowed || own {
            return Ok(volume::verdict(allowed, &request.user_info.username, &origin.namespace));
        }
        Ok(match keys.sign(&volume::grant(&origin, request), now) {
            Ok(token) => volume::granted(request, &token),
            Err(error) => {
                let text = format!("tokens cannot be signed yet: {}", ::error::chain(&error));
                Answer::refuse(503, "ServiceUnavailable", text)
            }
        })
    }

    async fn delete(&self, platform: Platform, request: &Request) -> cluster::Result<Answer> {
        for workload in uninstall::blocking(platform, request) {
            if self.any(workload).await? {
                return Ok(uninstall::refusal(platform, workload));
            }
        }
        Ok(Answer::allow())
    }

    /// The platform's namespace stays while HyperConverged exists: its finalizer could not be removed without the operator.
    async fn delete_namespace(&self, request: &Request) -> cluster::Result<Answer> {
        if request.operation != "DELETE" || request.name != self.namespace {
            return Ok(Answer::allow());
        }
        let key = Key::new(&self.namespace, api::hyperconverged::NAME);
        if self.client.find::<Value>(HYPER_CONVERGED, &key).await?.is_none() {
            return Ok(Answer::allow());
        }
        let text = format!("HyperConverged {key} still exists; delete it before its namespace");
        Ok(Answer::refuse(403, "Forbidden", text))
    }

    /// Checks a HostPathProvisioner; a second one is refused.
    async fn validate_host_path(&self, request: &Request) -> cluster::Result<Answer> {
        let mut others = Vec::new();
        if request.operation == "CREATE" {
            let others = &mut others;
            self.client
                .each(HOST_PATHS, &Scope::all(), |one: Value| {
                    others.extend(one["metadata"]["name"].as_str().map(str::to_owned));
                })
                .await?;
        }
        Ok(hostpath::validate(request, &others))
    }

    /// Whether there is any object of a kind.
    async fn any(&self, workload: &Workload) -> cluster::Result<bool> {
        let path = format!("{}?limit=1", workload.resource.collection("")?);
        let list: Value = self.client.read(&path).await?;
        Ok(list["items"].as_array().is_some_and(|items| !items.is_empty()))
    }
}

/// Adds the webhooks' paths.
pub(super) fn routes(mut router: Router, admission: &Arc<Admission>) -> Router {
    for review in Review::ALL {
        let admission = Arc::clone(admission);
        router = router.route(Method::POST, review.path(), move |call| {
            let admission = Arc::clone(&admission);
            async move { handle(&admission, review, call).await }
        });
    }
    router
}

async fn handle(admission: &Admission, review: Review, mut call: Call) -> route::Answer {
    let body = match call.bytes(MOST_BODY).await {
        Ok(body) => body,
        Err(refusal) => return refusal.answer(),
    };
    let request = match Request::read(&body) {
        Ok(request) => request,
        Err(error) => return route::text(StatusCode::BAD_REQUEST, error.chain()),
    };
    drop(body);
    let answer = if review.resources().contains(&request.resource.resource.as_str()) {
        admission.review(review, &request).await.unwrap_or_else(|error| {
            tracing::warn!(?review, error = error.chain(), "cannot answer an admission review");
            Answer::refuse(500, "InternalError", error.chain())
        })
    } else {
        let text = format!(
            "this webhook reviews {}, not {}: apply the operator's manifests again",
            review.resources().join(" and "),
            request.resource.resource
        );
        Answer::refuse(400, "BadRequest", text)
    };
    route::json(StatusCode::OK, answer.write(&request.uid).to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::install::manifests;

    /// Path and resource of each webhook that the installed configurations send to the operator.
    fn installed() -> BTreeSet<(String, String)> {
        let all = manifests(&install::Settings::default());
        let ours: BTreeSet<&str> = all
            .iter()
            .filter(|one| one["kind"] == "Service" && one["spec"]["selector"]["app"] == "ferrovirt-operator")
            .filter_map(|one| one["metadata"]["name"].as_str())
            .collect();
        let hooks = all.iter().filter_map(|one| one["webhooks"].as_array()).flatten();
        let mut found = BTreeSet::new();
        for hook in hooks {
            let service = &hook["clientConfig"]["service"];
            if !service["name"].as_str().is_some_and(|name| ours.contains(name)) {
                continue;
            }
            for resource in hook["rules"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|rule| rule["resources"].as_array().unwrap())
            {
                found.insert((
                    service["path"].as_str().unwrap().to_owned(),
                    resource.as_str().unwrap().to_owned(),
                ));
            }
        }
        found
    }

    #[test]
    fn every_installed_webhook_is_served_and_every_served_one_installed() {
        let of = |one: &Review| {
            let path = one.path();
            one.resources().iter().map(move |resource| (path.to_owned(), (*resource).to_owned()))
        };
        let served: BTreeSet<_> = Review::ALL.iter().flat_map(of).collect();
        assert_eq!(served.len(), Review::ALL.iter().map(|one| one.resources().len()).sum::<usize>());
        assert_eq!(served, installed());
    }
}
