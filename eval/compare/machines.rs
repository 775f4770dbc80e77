//! Whether the speeds of two reports were measured on one machine.
use crate::report::Report;
use crate::report::words::plain;

/// That the speeds of two reports were measured on different machines, or by different shares of one.
pub(super) fn other_machine(
    (name, report): (&str, &Report),
    (first_name, first): (&str, &Report),
) -> Option<String> {
    if ![report, first].into_iter().all(has_speeds) {
        return None;
    }
    let said = |of: &Report, key: &str| of.device.get(key).map(plain);
    // Reports of earlier versions, and of machines that do not tell, say nothing of some things.
    let differ = |key: &str| {
        let both = said(report, key).zip(said(first, key));
        both.is_some_and(|(theirs, ours)| theirs != ours)
    };
    // Whichever of several GPUs it was.
    let kind = |of: &Report| {
        let name = said(of, "name").unwrap_or_default();
        name.split(':').next().unwrap_or_default().to_owned()
    };
    let kinds = [report, first].map(kind);
    let by_threads = kinds.iter().all(|kind| kind == "cpu") && differ("threads");
    let is_other = kinds[0] != kinds[1] || differ("model") || differ("system") || by_threads;
    let named = |of: &Report| {
        let parts = [
            said(of, "name"),
            said(of, "model"),
            said(of, "system"),
            said(of, "threads").map(|threads| format!("threads: {threads}")),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    };
    is_other.then(|| {
        format!(
            "Not comparable in speed: {name} was measured on another machine ({}) than {first_name} ({}).",
            named(report),
            named(first)
        )
    })
}

/// Whether anything in a report says how fast decoding was, and on what.
fn has_speeds(report: &Report) -> bool {
    let mut settings = report.settings.iter();
    let is_timed = settings.any(|setting| setting.overall.speedup.is_some());
    (is_timed || !report.settings_recommended.is_empty()) && !report.device.is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::examples;

    #[test]
    fn speeds_of_other_machines_are_not_compared() {
        let on = |device: serde_json::Value| {
            let mut report = examples::report();
            report.device = device.as_object().unwrap().clone();
            report
        };
        let of = |name: &str, model: Option<&str>, threads: u64| {
            let mut device = json!({"name": name, "system": "linux x86_64", "threads": threads});
            if let Some(model) = model {
                device["model"] = json!(model);
            }
            on(device)
        };
        let told = |one: &Report, other: &Report| other_machine(("b", other), ("a", one));
        let cpu = of("cpu", Some("Some CPU"), 2);
        let gpu = of("cuda:0", Some("H200"), 16);
        assert_eq!(
            told(&cpu, &gpu).as_deref(),
            Some(
                "Not comparable in speed: b was measured on another machine (cuda:0, H200, linux x86_64, threads: 16) than a (cpu, \
                 Some CPU, linux x86_64, threads: 2)."
            )
        );
        for other in [
            of("cpu", Some("Other CPU"), 2),
            of("cpu", Some("Some CPU"), 4),
            of("cpu", None, 4),
        ] {
            assert!(told(&cpu, &other).is_some(), "{:?}", other.device);
        }
        let of_other_model = of("cuda:0", Some("A100"), 16);
        assert!(told(&gpu, &of_other_model).is_some());
        // One of two GPUs of a machine, in a job with other processors; earlier versions told no model.
        for (one, same) in [
            (&gpu, of("cuda:1", Some("H200"), 8)),
            (&gpu, of("cuda", None, 16)),
            (&cpu, of("cpu", None, 2)),
        ] {
            assert_eq!(told(one, &same), None, "{:?}", same.device);
        }
        // Without speeds there is nothing to compare.
        let mut untimed = gpu;
        untimed.settings[0].overall.speedup = None;
        assert_eq!(told(&cpu, &untimed), None);
    }
}
