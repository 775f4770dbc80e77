//! A report for tests.
use crate::chi_square::ChiSquare;
use crate::deploy::report::{BestDraft, CandidateReport, CostSource, Over, Recommendation};
use crate::draft::{ChainTokens, DraftReport};
use crate::groups::Groups;
use crate::report::{
    DatasetReport, DrafterReport, LosslessReport, Report, SecondsReport, SettingReport, Speedup,
    TargetReport,
};
use crate::sampling_test::SamplingReport;
use crate::spread::SpreadReport;

/// A dataset in which everything is known.
pub(crate) fn dataset() -> DatasetReport {
    DatasetReport {
        name: "gsm8k".into(),
        prompts: 2,
        tokens: 30,
        passes: 12,
        tau: Some(2.5),
        tau_ci95: Some([2.25, 2.75]),
        alpha: Some(0.6875),
        alpha_ci95: Some([0.5, 0.75]),
        alpha_analytic: None,
        conditional: vec![0.75, 0.5],
        survival: vec![1.0, 0.5],
        accepted_histogram: vec![0, 6, 6],
        draft_tokens_per_pass: Some(2.0),
        speedup: Some(Speedup {
            wall: 1.5,
            wall_ci95: Some([1.25, 1.75]),
            model: Some(1.625),
            memory_bound: Some(2.0),
            ..Speedup::default()
        }),
        seconds: SecondsReport {
            draft: 0.5,
            verify: 1.0,
            other: 0.25,
            autoregressive: Some(2.625),
        },
        spread: SpreadReport::default(),
        counts: vec![[18.0, 8.0].into(), [12.0, 4.0].into()],
        prompts_sha256: Some("ab".into()),
    }
}

/// A sampled setting over two datasets, of which one has no answers.
pub(crate) fn report() -> Report {
    let empty = DatasetReport {
        name: "mt-bench".into(),
        ..DatasetReport::default()
    };
    let overall = DatasetReport {
        name: "overall".into(),
        ..dataset()
    };
    let setting = SettingReport {
        target: None,
        drafter: None,
        temperature: 0.6,
        top_k: None,
        top_p: Some(0.95),
        verifier: "rejection".into(),
        lossy: false,
        draft: DraftReport::Chain {
            length: 2,
            tokens: Some(ChainTokens::Drawn),
        },
        ends: None,
        datasets: vec![dataset(), empty],
        overall,
        sampling: None,
        estimate: None,
        calibration: None,
        groups: Groups::default(),
        token_classes: Vec::new(),
    };
    let target = TargetReport {
        model: "Qwen/Qwen3-0.6B".into(),
        ..TargetReport::default()
    };
    let drafter = DrafterReport {
        kind: "eagle3".into(),
        path: "runs/a/train".into(),
        parameters: 1234,
        ..DrafterReport::default()
    };
    let mut report = Report::new(target, drafter, vec![setting]);
    report.lossless = LosslessReport {
        greedy_outputs: 4,
        greedy_tokens: 512,
        sampling: Some(SamplingReport {
            tokens: 2100,
            each: ChiSquare {
                statistic: 16.25,
                dof: 19,
                p_value: 0.64,
            },
            tuples: None,
            detectable_shift: Some(0.0275),
            largest_entropy: 2.5,
        }),
        ..LosslessReport::default()
    };
    report.seeds.insert("sampling".into(), 3);
    report
}

/// What to deploy at two batch sizes: a chain of one token, and no drafter.
pub(crate) fn recommended() -> Vec<Recommendation> {
    let chain = |length| DraftReport::Chain {
        length,
        tokens: None,
    };
    let candidate = |length, speedup| CandidateReport {
        draft: chain(length),
        tau: 1.5,
        seconds: 0.5,
        draft_seconds: Some(0.125),
        timed: true,
        speedup,
        speedup_ci95: Some([speedup - 0.25, speedup + 0.25]),
    };
    let one = Recommendation {
        target: None,
        temperature: 0.0,
        top_k: None,
        top_p: None,
        batch_size: 1,
        costs: CostSource::Decoder,
        rounds: Some(12),
        plain_seconds: 0.5,
        candidates: vec![candidate(1, 1.5), candidate(2, 1.25)],
        best: Some(BestDraft {
            draft: chain(1),
            speedup: 1.5,
            speedup_ci95: Some([1.25, 1.75]),
            over_second: Some(Over {
                draft: chain(2),
                ratio: 1.2,
                ratio_ci95: Some([1.1, 1.3]),
            }),
            over_default: None,
            commands: vec!["serve 'it'".into()],
        }),
    };
    let many = Recommendation {
        batch_size: 16,
        candidates: vec![candidate(1, 0.5), candidate(2, 0.25)],
        best: None,
        ..one.clone()
    };
    vec![one, many]
}
