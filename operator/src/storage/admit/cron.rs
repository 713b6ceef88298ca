//! Admission of DataImportCrons: the source, the template as for DataVolumes, then schedule and retention. Pure.

use serde_json::Value;

use super::{Verdict, cause, short_name, spec};
use crate::storage::cron::schedule::Schedule;

/// Sources that have versions.
const SOURCES: [&str; 5] = ["registry", "http", "s3", "gcs", "pvc"];

/// Judges a new DataImportCron.
///
/// # Errors
/// The first cause to refuse it.
pub fn create(object: &Value) -> Verdict {
    short_name("DataImportCron", "metadata.name", &object["metadata"]["name"])?;
    let fields = &object["spec"];
    let template = &fields["template"]["spec"];
    if SOURCES.iter().all(|kind| template["source"][*kind].is_null()) {
        return Err(cause(
            "spec.template.spec.source",
            format!("Missing registry source, or one of {}", SOURCES[1..].join(", ")),
        ));
    }
    let annotations = &fields["template"]["metadata"]["annotations"];
    spec(template, annotations).map_err(|mut cause| {
        cause.field = format!("spec.template.{}", cause.field);
        cause
    })?;
    let schedule = fields["schedule"].as_str().unwrap_or_default();
    if !schedule.trim().is_empty()
        && let Err(error) = Schedule::parse(schedule)
    {
        return Err(cause("spec.schedule", format!("Illegal cron schedule: {error}")));
    }
    one_of("spec.garbageCollect", "GarbageCollect", &fields["garbageCollect"], &["Outdated", "Never"])?;
    one_of("spec.retentionPolicy", "RetentionPolicy", &fields["retentionPolicy"], &["RetainAll", "None"])?;
    if fields["importsToKeep"].as_i64().is_some_and(|number| number < 0) {
        return Err(cause("spec.importsToKeep", "Illegal ImportsToKeep value: it is less than zero"));
    }
    let managed = &fields["managedDataSource"];
    if managed.as_str().unwrap_or_default().is_empty() {
        return Err(cause("spec.managedDataSource", "Illegal ManagedDataSource value: it is empty"));
    }
    short_name("DataSource", "spec.managedDataSource", managed)
}

fn one_of(field: &str, name: &str, value: &Value, known: &[&str]) -> Verdict {
    match value.as_str() {
        Some(text) if !text.is_empty() && !known.contains(&text) => {
            let known = known.join(" or ");
            Err(cause(field, format!("Illegal {name} value {text:?}: it is {known}")))
        }
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cron(change: &Value) -> Value {
        let mut spec = json!({
            "schedule": "0 3 * * *",
            "managedDataSource": "fedora",
            "template": {"spec": {
                "source": {"registry": {"url": "docker://a/b"}},
                "storage": {"resources": {"requests": {"storage": "1Gi"}}},
            }},
        });
        for (name, value) in change.as_object().unwrap() {
            spec[name] = value.clone();
        }
        json!({"metadata": {"name": "c"}, "spec": spec})
    }

    #[test]
    fn valid_crons_pass() {
        for change in [
            json!({}),
            json!({"schedule": ""}),
            json!({"template": {"spec": {
                "source": {"registry": {"imageStream": "a:1", "pullMethod": "node"}},
                "storage": {"resources": {"requests": {"storage": "1Gi"}}},
            }}}),
            json!({"schedule": "30 1/12 * * *", "garbageCollect": "Never", "retentionPolicy": "None", "importsToKeep": 0}),
        ] {
            assert_eq!(create(&cron(&change)), Ok(()), "{change}");
        }
    }

    #[test]
    fn crons_that_cannot_work_are_refused_with_their_field() {
        let storage = json!({"resources": {"requests": {"storage": "1Gi"}}});
        let of = |source: Value| json!({"template": {"spec": {"source": source, "storage": storage}}});
        for (change, field, message) in [
            (of(json!({"blank": {}})), "spec.template.spec.source", "Missing registry source"),
            (
                of(json!({"http": {"url": "ftp://a"}})),
                "spec.template.spec.source.http.url",
                "Invalid source URL scheme",
            ),
            (
                of(json!({"registry": {"imageStream": "a"}})),
                "spec.template.spec.source.registry",
                "only with node pull",
            ),
            (
                json!({"template": {"spec": {"source": {"registry": {"url": "docker://a"}}}}}),
                "spec.template.spec.PVC",
                "Missing Data volume PVC",
            ),
            (json!({"schedule": "often"}), "spec.schedule", "Illegal cron schedule"),
            (json!({"garbageCollect": "Sometimes"}), "spec.garbageCollect", "Illegal GarbageCollect value"),
            (json!({"retentionPolicy": "Some"}), "spec.retentionPolicy", "Illegal RetentionPolicy value"),
            (json!({"importsToKeep": -1}), "spec.importsToKeep", "Illegal ImportsToKeep value"),
            (json!({"managedDataSource": ""}), "spec.managedDataSource", "Illegal ManagedDataSource value"),
            (
                json!({"managedDataSource": "a".repeat(64)}),
                "spec.managedDataSource",
                "cannot be more than 63 characters",
            ),
        ] {
            let found = create(&cron(&change)).unwrap_err();
            assert_eq!(found.field, field, "{change}");
            assert!(found.message.contains(message), "{found:?}");
        }
    }

    #[test]
    fn the_spec_stays() {
        let old = cron(&json!({}));
        assert_eq!(super::super::update("DataImportCron", &old, &old), Ok(()));
        let new = cron(&json!({"schedule": "0 4 * * *"}));
        let found = super::super::update("DataImportCron", &old, &new).unwrap_err();
        assert_eq!(
            (found.field.as_str(), found.message.as_str()),
            ("spec", "Cannot update DataImportCron Spec")
        );
    }
}
