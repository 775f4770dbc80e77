//! A run that is cut in half and taken up again ends bitwise where an uncut one does.
use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

use spectrain_checkpoints::{NamedTensor, atomic, state};
use spectrain_train::{Decay, DecayShape, Error, Noise, TrainConfig, saved_weights};

use crate::logged::logged;
use crate::sessions::{
    Session, Trained, dropped, eagle3, ended, figures, noisy, on_policy, steps, try_eagle3,
    weighed_anew,
};

/// The weights that the state of a step holds.
fn weights_at(folder: &Path, step: u64) -> Vec<NamedTensor> {
    let saved = state::list(folder).unwrap();
    let saved = saved.iter().find(|saved| saved.step == step).unwrap();
    let mut state = state::load(&saved.path).unwrap();
    state.tensors.remove("weights").unwrap()
}

fn halves_equal_the_whole(train: impl Fn(&Path, &Session) -> Trained) {
    let whole = tempfile::tempdir().unwrap();
    let halves = tempfile::tempdir().unwrap();
    let (expected, weights) = train(whole.path(), &Session::whole());
    assert_eq!((expected.steps, expected.interrupted), (10, false));
    let (summary, _) = train(halves.path(), &Session::until(5));
    assert_eq!((summary.steps, summary.interrupted), (5, true));
    let (summary, got) = train(halves.path(), &Session::whole());
    assert_eq!(figures(&summary), figures(&expected));
    assert_eq!(got, weights);
    let saved = steps(halves.path());
    assert!(saved.contains(&10) && saved.len() <= 3, "{saved:?}");
}

#[test]
fn half_a_run_and_its_other_half_equal_a_whole_one_bitwise() {
    halves_equal_the_whole(eagle3);
}

#[test]
fn half_a_run_with_a_mean_of_its_weights_and_its_other_half_equal_a_whole_one_bitwise() {
    fn averaged(folder: &Path, session: &Session) -> Trained {
        let own = Session {
            stop_after: session.stop_after,
            ..Session::with(|train| train.ema_decay = 0.5)
        };
        eagle3(folder, &own)
    }
    halves_equal_the_whole(averaged);
    let [plain, mean] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (_, plain) = eagle3(plain.path(), &Session::whole());
    assert_ne!(averaged(mean.path(), &Session::whole()).1, plain);
}

#[test]
fn a_run_that_begins_trained_goes_on_from_its_first_state() {
    for ema_decay in [0.0, 0.5] {
        let begun = |dies_after| Session {
            dies_after,
            begins_trained: true,
            ..Session::with(|train| train.ema_decay = ema_decay)
        };
        let [whole, cut] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (expected, weights) = eagle3(whole.path(), &begun(usize::MAX));
        // It dies behind the first step, of which nothing was saved yet.
        let died = || eagle3(cut.path(), &begun(1));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(died)).unwrap_err();
        assert_eq!(steps(cut.path()), [0]);
        let (summary, got) = eagle3(cut.path(), &begun(usize::MAX));
        assert_eq!(figures(&summary), figures(&expected));
        assert_eq!(got, weights, "{ema_decay}");
    }
}

#[test]
fn half_a_run_whose_losses_are_weighed_anew_and_its_other_half_equal_a_whole_one_bitwise() {
    halves_equal_the_whole(weighed_anew);
}

#[test]
fn half_a_run_with_noise_and_its_other_half_equal_a_whole_one_bitwise() {
    halves_equal_the_whole(|folder, session| noisy(Noise::default(), folder, session));
}

#[test]
fn half_a_run_on_texts_of_its_own_and_its_other_half_equal_a_whole_one_bitwise() {
    halves_equal_the_whole(|folder, session| on_policy(0.5, folder, session));
}

#[test]
fn half_a_run_with_dropped_rows_and_its_other_half_equal_a_whole_one_bitwise() {
    halves_equal_the_whole(dropped);
}

#[test]
fn a_run_stopped_at_any_step_ends_with_the_loss_of_a_whole_one() {
    let whole = tempfile::tempdir().unwrap();
    // The last log interval has several steps, and one of them is behind the last saved state.
    let session = || {
        Session::with(|train| {
            train.log_every = 5;
            train.save_every = 4;
        })
    };
    let (expected, _) = eagle3(whole.path(), &session());
    for stop_after in 1..10 {
        let folder = tempfile::tempdir().unwrap();
        let first = Session {
            stop_after,
            ..session()
        };
        let (stopped, _) = eagle3(folder.path(), &first);
        assert_eq!((stopped.steps, stopped.interrupted), (stop_after, true));
        let (summary, _) = eagle3(folder.path(), &session());
        assert_eq!(figures(&summary), figures(&expected), "{stop_after}");
    }
}

#[test]
fn a_run_stopped_while_it_validates_validates_when_it_goes_on() {
    let whole = tempfile::tempdir().unwrap();
    let (expected, weights) = eagle3(whole.path(), &Session::whole());
    for stop_at in [4, 8, 10] {
        let folder = tempfile::tempdir().unwrap();
        let stopped = Session {
            in_validation: Box::new(move |step| {
                if step == stop_at {
                    Err(Error::Interrupted)
                } else {
                    Ok(())
                }
            }),
            ..Session::whole()
        };
        for _ in 0..2 {
            let (summary, _) = eagle3(folder.path(), &stopped);
            assert_eq!((summary.steps, summary.interrupted), (stop_at, true));
        }
        let (summary, got) = eagle3(folder.path(), &Session::whole());
        assert_eq!(figures(&summary), figures(&expected), "{stop_at}");
        assert_eq!(got, weights);
        assert_eq!(weights_at(folder.path(), 10), weights_at(whole.path(), 10));
    }
}

#[test]
fn a_validation_that_fails_takes_no_step_with_it() {
    // Steps 4 and 8 are validated and saved, and so is the last.
    let session = || Session::with(|train| train.save_every = 4);
    let whole = tempfile::tempdir().unwrap();
    let (expected, weights) = eagle3(whole.path(), &session());
    for fails_at in [4, 8, 10] {
        let folder = tempfile::tempdir().unwrap();
        let failing = Session {
            in_validation: Box::new(move |step| {
                if step == fails_at {
                    Err(ended(step))
                } else {
                    Ok(())
                }
            }),
            ..session()
        };
        try_eagle3(folder.path(), &failing).unwrap_err();
        assert_eq!(steps(folder.path()).last(), Some(&(fails_at as u64)));
        // It is what the run goes on with.
        try_eagle3(folder.path(), &failing).unwrap_err();
        assert_eq!(steps(folder.path()).last(), Some(&(fails_at as u64)));
        let (summary, got) = eagle3(folder.path(), &session());
        assert_eq!(figures(&summary), figures(&expected), "{fails_at}");
        assert_eq!(got, weights);
        assert_eq!(logged(folder.path()), logged(whole.path()), "{fails_at}");
    }
}

#[test]
fn what_a_validation_finds_is_saved_without_the_weights_being_written_again() {
    // Step 10 is saved, validated, and saved with what was found.
    let state = Path::new("step-00000010");
    let long_ago = SystemTime::UNIX_EPOCH;
    let session = |folder: &Path, interrupted: bool| {
        let weights = folder.join(state).join("weights.safetensors");
        let in_validation = move |step: usize| {
            if step == 10 {
                let file = File::options().write(true).open(&weights).unwrap();
                file.set_modified(long_ago).unwrap();
            }
            match step {
                10 if interrupted => Err(Error::Interrupted),
                _ => Ok(()),
            }
        };
        Session {
            in_validation: Box::new(in_validation),
            ..Session::whole()
        }
    };
    for sessions in [&[false][..], &[true, true, false]] {
        let folder = tempfile::tempdir().unwrap();
        let saved = folder.path().join(state);
        for &interrupted in sessions {
            eagle3(folder.path(), &session(folder.path(), interrupted));
            let weights = saved.join("weights.safetensors").metadata().unwrap();
            assert_eq!(weights.modified().unwrap(), long_ago);
            let said = state::load(&saved).unwrap().state;
            assert_eq!(said["unvalidated"], interrupted);
            assert_eq!(said["best"][0], if interrupted { 8 } else { 10 });
        }
    }
}

#[test]
fn a_validation_of_which_nothing_could_be_saved_is_logged_once() {
    let session = |in_validation: Box<dyn Fn(usize) -> Result<(), Error>>| Session {
        in_validation,
        ..Session::with(|train| train.save_every = 4)
    };
    let whole = tempfile::tempdir().unwrap();
    eagle3(whole.path(), &session(Box::new(|_| Ok(()))));
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("step-00000008/state.json");
    // What it finds is logged, and cannot be written where a folder is in the way.
    let in_the_way = atomic::partial_path(&state);
    let blocked = in_the_way.clone();
    let failing = session(Box::new(move |step| {
        if step == 8 {
            std::fs::create_dir(&blocked).unwrap();
        }
        Ok(())
    }));
    let error = try_eagle3(folder.path(), &failing).unwrap_err().to_string();
    assert!(error.contains("state.json"), "{error}");
    let lines = logged(folder.path());
    let last = lines.last().unwrap();
    assert!(
        last["step"] == 8 && last["validation/loss"].is_f64(),
        "{last}"
    );
    std::fs::remove_dir(&in_the_way).unwrap();
    eagle3(folder.path(), &session(Box::new(|_| Ok(()))));
    assert_eq!(logged(folder.path()), logged(whole.path()));
}

#[test]
fn texts_of_its_own_change_what_is_learnt() {
    let weights = |fraction| {
        let folder = tempfile::tempdir().unwrap();
        on_policy(fraction, folder.path(), &Session::whole()).1
    };
    let (none, half, all) = (weights(0.0), weights(0.5), weights(1.0));
    assert!(none != half && half != all);
}

#[test]
fn noise_changes_what_is_learnt() {
    let weights = |noise| {
        let folder = tempfile::tempdir().unwrap();
        noisy(noise, folder.path(), &Session::whole()).1
    };
    let silent = Noise {
        std: 0.0,
        ..Noise::default()
    };
    assert_ne!(weights(silent), weights(Noise::default()));
}

#[test]
fn the_state_of_another_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    eagle3(folder.path(), &Session::until(3));
    let other = Session {
        identity: "other",
        ..Session::whole()
    };
    let error = try_eagle3(folder.path(), &other).unwrap_err();
    assert!(matches!(error, Error::OtherTraining { .. }), "{error}");
    let told = "is the state of another training: `identity`: expected `other`, found `test`";
    assert!(error.to_string().contains(told), "{error}");
    let shorter = Session::with(|train| train.steps = 2);
    let error = try_eagle3(folder.path(), &shorter).unwrap_err().to_string();
    assert!(error.contains("of at most 2, found step 3"), "{error}");
}

#[test]
fn a_state_that_does_not_note_its_settings_is_told_to_be_of_an_earlier_version() {
    let folder = tempfile::tempdir().unwrap();
    eagle3(folder.path(), &Session::until(3));
    let saved = state::latest(folder.path()).unwrap().unwrap();
    let mut noted = state::load(&saved.path).unwrap().state;
    assert_eq!(noted["made_from"], "test");
    noted["made_from"].take();
    noted["identity"] = "of an earlier version".into();
    state::save_again(folder.path(), saved.step, &noted).unwrap();
    let error = try_eagle3(folder.path(), &Session::whole()).unwrap_err();
    assert!(matches!(error, Error::State { .. }), "{error}");
    let told = "found one of an earlier version, which did not note them";
    assert!(error.to_string().ends_with(told), "{error}");
}

#[test]
fn a_damaged_state_is_refused_with_the_step_from_which_to_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let (_, weights) = eagle3(folder.path(), &Session::whole());
    let [.., before, last] = &state::list(folder.path()).unwrap()[..] else {
        panic!("expected two states");
    };
    let file = last.path.join("state.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let step = "\"step\": 10";
    assert!(text.matches(step).count() >= 2, "{text}");
    std::fs::write(&file, text.replace(step, "\"step\": 11")).unwrap();
    let error = try_eagle3(folder.path(), &Session::whole())
        .unwrap_err()
        .to_string();
    let advice = format!("goes on from step {}", before.step);
    assert!(
        error.contains("state.json") && error.contains(&advice),
        "{error}"
    );
    std::fs::remove_dir_all(&last.path).unwrap();
    assert_eq!(eagle3(folder.path(), &Session::whole()).1, weights);
}

/// One that begins trained, and whose first weights stay the best.
fn best_at_the_start(stop_after: usize) -> Session {
    Session {
        begins_trained: true,
        loss: |step| 1.0 + step as f64,
        ..Session::until(stop_after)
    }
}

fn best_of(folder: &Path, stop_after: usize) -> (usize, Vec<NamedTensor>) {
    let (summary, weights) = eagle3(folder, &best_at_the_start(stop_after));
    assert_eq!(summary.steps, stop_after.min(10));
    assert_eq!(summary.interrupted, stop_after < 10);
    (summary.best.unwrap().0, weights)
}

#[test]
fn a_training_whose_best_state_is_gone_or_damaged_ends_with_the_best_of_what_is_left() {
    let whole = tempfile::tempdir().unwrap();
    let (best, weights) = best_of(whole.path(), usize::MAX);
    assert_eq!(best, 0);
    let losses: [fn(&Path); 3] = [
        |state| std::fs::remove_dir_all(state).unwrap(),
        |state| std::fs::remove_file(state.join("state.json")).unwrap(),
        |state| {
            let file = state.join("weights.safetensors");
            let mut bytes = std::fs::read(&file).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(&file, bytes).unwrap();
        },
    ];
    for lose in losses {
        // In the middle, where later weights are worse again, and at the end.
        for (stop_after, left) in [(5, 5), (usize::MAX, 10)] {
            let folder = tempfile::tempdir().unwrap();
            assert_eq!(best_of(folder.path(), stop_after).0, 0);
            lose(&state::folder_of(folder.path(), 0));
            let (best, got) = best_of(folder.path(), usize::MAX);
            assert_eq!(best, left);
            assert_eq!(got, weights);
            let taken = saved_weights(folder.path(), left as u64).unwrap();
            assert_eq!(taken, weights_at(folder.path(), left as u64));
        }
    }
    // Nothing but the weights is taken of it.
    let state = state::folder_of(whole.path(), 0);
    std::fs::remove_file(state.join("optimizer.safetensors")).unwrap();
    assert_eq!(best_of(whole.path(), usize::MAX).0, 0);
    saved_weights(whole.path(), 0).unwrap();
}

#[test]
fn with_a_constant_schedule_a_longer_run_begins_as_a_shorter_one() {
    let whole = tempfile::tempdir().unwrap();
    let parts = tempfile::tempdir().unwrap();
    let session = |steps, schedule| {
        Session::with(|train| {
            train.steps = steps;
            train.schedule = schedule;
        })
    };
    let (_, weights) = eagle3(whole.path(), &session(10, Decay::Constant));
    eagle3(parts.path(), &session(6, Decay::Constant));
    let (summary, got) = eagle3(parts.path(), &session(10, Decay::Constant));
    assert_eq!((summary.steps, summary.interrupted), (10, false));
    assert_eq!(got, weights);
    // A schedule that falls to the end has fallen too early.
    let parts = tempfile::tempdir().unwrap();
    eagle3(parts.path(), &session(6, Decay::Cosine));
    let (summary, got) = eagle3(parts.path(), &session(10, Decay::Cosine));
    assert_eq!(summary.steps, 10);
    assert_ne!(got, weights);
}

#[test]
fn a_run_that_is_cut_before_the_fall_of_wsd_goes_on_to_a_later_end_as_if_that_had_been_its_own() {
    let [whole, cut, fallen] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let session = |steps| {
        Session::with(|train| {
            train.steps = steps;
            train.schedule = Decay::Wsd;
            train.decay_ratio = Some(0.5);
            train.decay_shape = Some(DecayShape::MinusSqrt);
        })
    };
    let (_, weights) = eagle3(whole.path(), &session(10));
    let before = Session {
        stop_after: 4,
        ..session(8)
    };
    eagle3(cut.path(), &before);
    assert_eq!(eagle3(cut.path(), &session(10)).1, weights);
    eagle3(fallen.path(), &session(8));
    assert_ne!(eagle3(fallen.path(), &session(10)).1, weights);
}

#[test]
fn keys_without_an_effect_on_the_weights_change_no_bit_of_them() {
    type Change = fn(&mut TrainConfig);
    let trained = |change: Change| {
        let folder = tempfile::tempdir().unwrap();
        eagle3(folder.path(), &Session::with(change)).1
    };
    let weights = trained(|_| ());
    let changes: [Change; 5] = [
        |train| train.log_every = 3,
        |train| train.save_every = 5,
        |train| train.keep = 1,
        |train| train.explosion = 2.0,
        |train| train.gradient_checkpointing = true,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        assert_eq!(trained(change), weights, "change {number}");
        let mut settings = TrainConfig::default();
        change(&mut settings);
        assert_eq!(settings.identity(), TrainConfig::default().identity());
    }
}

#[test]
fn states_that_are_not_kept_and_leftovers_are_gone_when_a_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    eagle3(folder.path(), &Session::with(|train| train.keep = 9));
    assert!(steps(folder.path()).len() > 3);
    std::fs::create_dir(path("step-00000011.spectrain-partial")).unwrap();
    // Killed between the two renames of a replacement.
    std::fs::rename(path("step-00000010"), path("step-00000010.spectrain-old")).unwrap();
    let (summary, _) = eagle3(folder.path(), &Session::with(|train| train.keep = 1));
    assert_eq!(summary.steps, 10);
    assert_eq!(steps(folder.path()), [10]);
    assert!(!path("step-00000011.spectrain-partial").exists());
    assert!(!path("step-00000010.spectrain-old").exists());
}

#[test]
fn a_folder_that_vanishes_is_an_error_from_which_the_run_goes_on() {
    let whole = tempfile::tempdir().unwrap();
    let (expected, weights) = eagle3(whole.path(), &Session::whole());
    let root = tempfile::tempdir().unwrap();
    let (folder, away) = (root.path().join("train"), root.path().join("away"));
    for blocked in [false, true] {
        let (from, to) = (folder.clone(), away.clone());
        let vanishing = Session {
            in_validation: Box::new(move |step| {
                if step == 8 {
                    std::fs::rename(&from, &to).unwrap();
                }
                if step == 8 && blocked {
                    std::fs::write(&from, "in the way").unwrap();
                }
                Ok(())
            }),
            ..Session::whole()
        };
        let error = try_eagle3(&folder, &vanishing).unwrap_err().to_string();
        assert!(error.contains("not there any more"), "{error}");
        if blocked {
            std::fs::remove_file(&folder).unwrap();
        }
        std::fs::rename(&away, &folder).unwrap();
        assert!(steps(&folder).last().is_some_and(|&step| step < 8));
    }
    let (summary, got) = eagle3(&folder, &Session::whole());
    assert_eq!(figures(&summary), figures(&expected));
    assert_eq!(got, weights);
}

#[test]
fn training_goes_on_where_no_events_can_be_written() {
    let whole = tempfile::tempdir().unwrap();
    let (expected, weights) = eagle3(whole.path(), &Session::whole());
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("events"), "in the way").unwrap();
    let (summary, got) = eagle3(folder.path(), &Session::whole());
    assert_eq!(figures(&summary), figures(&expected));
    assert_eq!(got, weights);
}

#[test]
fn a_training_may_end_where_it_was_interrupted_and_its_last_weights_are_validated() {
    let folder = tempfile::tempdir().unwrap();
    // Within its warm-up, too.
    let cut = Session {
        stop_after: 5,
        ..Session::with(|train| train.warmup_steps = 8)
    };
    let (cut, weights) = eagle3(folder.path(), &cut);
    assert_eq!((cut.steps, cut.interrupted), (5, true));
    assert_eq!(cut.best.unwrap().0, 4);
    let ends = Session::with(|train| {
        train.warmup_steps = 8;
        train.steps = 5;
    });
    let (summary, got) = eagle3(folder.path(), &ends);
    assert_eq!((summary.steps, summary.interrupted), (5, false));
    assert_eq!(got, weights);
    assert_eq!(summary.best.unwrap().0, 5);
    let lines = logged(folder.path());
    let last = lines.last().unwrap();
    assert!(
        last["step"] == 5 && last["validation/loss"].is_f64(),
        "{last}"
    );
    // It is, once.
    eagle3(folder.path(), &ends);
    assert_eq!(logged(folder.path()), lines);
}
