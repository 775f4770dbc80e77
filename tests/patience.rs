//! A run ends where its validations find nothing better, and goes on where it is to wait for more of them.
use crate::logged::logged;
use crate::sessions::{Session, eagle3, figures, steps};

/// One whose validations find nothing better behind step 2 but at step 8, and that waits for so many of them.
pub fn waiting(patience: usize) -> Session {
    Session {
        loss: |step| match step {
            2 => 1.0,
            8 => 0.5,
            _ => 2.0,
        },
        ..Session::with(|train| {
            train.log_every = 3;
            train.validate_every = 2;
            train.patience = Some(patience);
        })
    }
}

#[test]
fn a_run_that_its_validations_end_goes_on_only_where_it_waits_for_more_of_them() {
    let whole = tempfile::tempdir().unwrap();
    let (expected, weights) = eagle3(whole.path(), &waiting(3));
    assert_eq!((expected.steps, expected.out_of_patience), (10, None));
    assert_eq!(expected.best.as_ref().unwrap().0, 8);
    // Step 6 is saved and logged in any case, step 4 is neither.
    for (patience, end) in [(1, 4), (2, 6)] {
        let folder = tempfile::tempdir().unwrap();
        let (summary, ended) = eagle3(folder.path(), &waiting(patience));
        let found = (summary.steps, summary.interrupted, summary.out_of_patience);
        assert_eq!(found, (end, false, Some(patience)));
        assert_eq!(summary.best.as_ref().unwrap().0, 2);
        let saved = steps(folder.path());
        assert!(
            saved.contains(&2) && saved.contains(&(end as u64)),
            "{saved:?}"
        );
        let lines = logged(folder.path());
        let last = lines.last().unwrap();
        let found = (&last["step"], &last["validation/without_better"]);
        assert_eq!(found, (&end.into(), &(patience as f64).into()));
        // Nothing is left to do.
        let (again, got) = eagle3(folder.path(), &waiting(patience));
        assert_eq!(figures(&again), figures(&summary));
        assert_eq!((got, again.out_of_patience), (ended, Some(patience)));
        assert_eq!(logged(folder.path()), lines);

        let (summary, got) = eagle3(folder.path(), &waiting(3));
        assert_eq!(figures(&summary), figures(&expected));
        assert_eq!((got == weights, summary.out_of_patience), (true, None));
        assert_eq!(logged(folder.path()), logged(whole.path()));
    }
}

#[test]
fn a_run_that_its_validations_end_waits_for_no_further_batch() {
    let folder = tempfile::tempdir().unwrap();
    let session = Session {
        // Those of four steps.
        batches_there: 8,
        ..waiting(1)
    };
    let (summary, _) = eagle3(folder.path(), &session);
    assert_eq!((summary.steps, summary.out_of_patience), (4, Some(1)));
}

#[test]
fn to_another_end_a_run_waits_anew() {
    let folder = tempfile::tempdir().unwrap();
    let mut session = waiting(1);
    for (steps, end) in [(10, 4), (12, 6), (12, 6), (7, 7)] {
        session.settings.steps = steps;
        let (summary, _) = eagle3(folder.path(), &session);
        let waited = (end < steps).then_some(1);
        assert_eq!((summary.steps, summary.out_of_patience), (end, waited));
    }
}
