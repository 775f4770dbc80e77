//! `spectrain report`: several runs side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::{Value, json};
use spectrain_checkpoints::folder::CONFIG;
use spectrain_checkpoints::near::near_file;
use spectrain_checkpoints::printable;
use spectrain_data::rows::is_same;
use spectrain_eval::{
    Curves, Report, compare, csv, page_with_curves, paired_csv, picture, summary, sweep,
};

use crate::cli::arguments::check_written;
use crate::cli::written::{is_of_sweep, sweep_json, write};
use crate::errors::Misuse;
use crate::progress::{print, tell};
use crate::runs::curves::curves_of;
use crate::runs::prepared::prepared_in;
use crate::runs::run_folder::{RunFolder, stale};
use crate::runs::stage_names;
use crate::runs::training_time::training_seconds;
use crate::runtime::target;

mod against;
mod pool;
mod same_prompts;

use pool::{Group, Run};

/// Where a report is, in the folder of a run or of `spectrain evaluate --out`.
const INSIDE: [&str; 2] = ["evaluate/report.json", "report.json"];
/// Names of files for the table, which is Markdown.
const TABLES: [&str; 3] = ["md", "markdown", "txt"];
/// Names of files for the picture.
const PICTURES: [&str; 1] = ["svg"];

/// Arguments of `spectrain report`.
#[derive(Debug, Args)]
pub struct ReportArguments {
    /// Runs or their folders, `report.json` files or folders with one, or the drafter's folder of a run
    #[arg(required_unless_present = "groups", value_name = "REPORT")]
    reports: Vec<PathBuf>,
    /// Write to this file instead of printing: the table, which is Markdown (`.md` or `.txt`), or a picture of the acceptance
    /// at each depth and of τ (`.svg`)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write one page with all charts and tables to this file; it needs no network, and follows a browser's light or dark scheme
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the figures as comma-separated values to this file, one row for each report, setting and dataset; with `--baseline`
    /// one for each difference
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Print everything as JSON: the reports under their names, and what was noticed; with `--baseline` the differences
    #[arg(long)]
    json: bool,
    /// Take runs together whose recipes differ in `seed` and `name` alone, and print the tables of a sweep: τ of all seeds and of
    /// each, and the difference from the first of these recipes, by pairs of prompts, over all prompts and over each dataset. `--csv`
    /// writes one row for each of these, and `--json` prints them. Not with `--out`, `--html` or `--baseline`
    #[arg(long, conflicts_with_all = ["out", "html", "baseline"])]
    pool: bool,
    /// With `--pool`, or in place of it, take these reports together under a name, as the seeds of one drafter, such as
    /// `speculators=judged/a,judged/b`: of drafters that were trained elsewhere, or judged anew, whose reports do not say by which
    /// recipe and seed. May be repeated; groups come behind the other reports
    #[arg(long = "group", value_name = "NAME=REPORT,REPORT", conflicts_with_all = ["out", "html", "baseline"])]
    groups: Vec<Group>,
    /// Compare each report with this one instead, prompt by prompt: the difference of τ in every setting that both have, and in
    /// every run on a server, with its interval and a sign test; drafters without a draft length in common are compared each at its
    /// own. Of several datasets each has its difference, too. With `--html` the page has this report first; not with `--out`
    #[arg(long, value_name = "REPORT", conflicts_with = "out")]
    baseline: Option<PathBuf>,
    /// Exit with status 1 if τ has significantly fallen by more than this, such as `-0.05`, over all prompts or on one of the
    /// datasets: if the 95 % interval of the difference lies below 0 and the difference is below this; also if nothing can be
    /// compared with a setting of the baseline, or only a chain of another length, or if all of its prompts together are fewer than
    /// 6 conversations; smaller datasets beside others are only named in a warning
    #[arg(
        long,
        value_name = "DIFFERENCE",
        requires = "baseline",
        allow_negative_numbers = true,
        value_parser = difference
    )]
    fail_below: Option<f64>,
    /// The folder of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
}

/// A difference of τ that is a fall, or none: a number that others can be below.
fn difference(given: &str) -> Result<f64, String> {
    let read = given.trim().parse::<f64>().ok();
    let is_fall = |number: &f64| number.is_finite() && *number <= 0.0;
    let fall = read.filter(is_fall);
    fall.ok_or_else(|| {
        format!("expected a number that is not above 0, such as -0.05, found `{given}`")
    })
}

/// A report, and where it was found.
struct Found {
    /// What the user calls it.
    given: PathBuf,
    file: PathBuf,
    report: Report,
    /// Why it is not about what is there now.
    stale: Option<String>,
}

/// Runs the command.
pub fn run(arguments: &ReportArguments) -> Result<()> {
    arguments.check()?;
    let out = arguments.out.as_deref();
    let out = out.map(|file| Form::of(file).map(|form| (file, form)));
    let out = out.transpose()?;
    // The page of several reports compares each with the first.
    let reports = arguments.reports_of_runs();
    let baseline = arguments.baseline.iter().map(PathBuf::as_path);
    let found = baseline.chain(reports.iter().copied());
    let found = found.map(|given| arguments.find(given));
    let found = found.collect::<Result<Vec<_>>>()?;
    arguments.check_written(&found)?;
    if arguments.pool || !arguments.groups.is_empty() {
        return arguments.pool_all(found);
    }
    let mut named = Vec::new();
    let mut remarks: Vec<String> = Vec::new();
    let mut trainings = Vec::new();
    for (name, found) in names(&found).into_iter().zip(found) {
        if let Some(run) = run_of(&found.file).filter(|_| arguments.html.is_some()) {
            trainings.push((name.clone(), curves_of(run)?));
        }
        let stale = stale_remark(&name, found.stale);
        // The baseline may be among the reports.
        remarks.extend(stale.filter(|remark| !remarks.contains(remark)));
        named.push((name, found.report));
    }
    let written = write_files(arguments, out, &named, &remarks, &trainings)?;
    if let (Some(_), [baseline, reports @ ..]) = (&arguments.baseline, &named[..]) {
        return arguments.compare_with(baseline, reports, &remarks);
    }
    if arguments.json {
        return print(json(&named, &remarks)?);
    }
    if written {
        remarks
            .iter()
            .for_each(|remark| tell(format!("warning: {remark}")));
        return Ok(());
    }
    print(summary(&named) + &paragraphs(&remarks))
}

/// That a report is not about what is there now.
fn stale_remark(name: &str, why: Option<String>) -> Option<String> {
    why.map(|why| format!("Stale: {name}: {why}."))
}

impl ReportArguments {
    /// The reports that are given, without the tables of sweeps that lie beside runs.
    fn reports_of_runs(&self) -> Vec<&Path> {
        let all = self.reports.iter().map(PathBuf::as_path);
        let (tables, reports): (Vec<&Path>, Vec<&Path>) = all.partition(|file| is_of_sweep(file));
        if reports.is_empty() {
            return tables;
        }
        for table in tables {
            tell(format!(
                "left out `{}`, which holds the tables of a sweep",
                table.display()
            ));
        }
        reports
    }

    /// The report that is meant by a file, a folder, or the name of a run.
    fn find(&self, given: &Path) -> Result<Found> {
        read(given, file_of(given, &self.runs)?)
    }

    /// Prints the tables of runs that are pooled over their seeds, and of groups, and writes them where that is asked for.
    fn pool_all(&self, mut found: Vec<Found>) -> Result<()> {
        let alone = found.len();
        for given in self.groups.iter().flat_map(|group| &group.reports) {
            found.push(self.find(given)?);
        }
        self.check_written(&found)?;
        let (mut runs, mut remarks) = (Vec::new(), Vec::new());
        for (name, found) in names(&found).into_iter().zip(found) {
            let stages = pool::training_stages(&found.report.recipe);
            let seconds = run_of(&found.file).map(|run| training_seconds(run, stages));
            remarks.extend(stale_remark(&name, found.stale));
            runs.push(Run {
                name,
                report: found.report,
                seconds: seconds.transpose()?,
            });
        }
        let mut grouped = runs.split_off(alone).into_iter();
        let groups = self.groups.iter().map(|group| {
            let own = grouped.by_ref().take(group.reports.len());
            (group.name.as_str(), own.collect())
        });
        let found = sweep(&pool::variations(runs, groups.collect())?);
        if let Some(file) = &self.csv {
            write(file, &found.to_csv())?;
        }
        print(match self.json {
            true => sweep_json(&found, &remarks)?,
            false => found.to_text() + &paragraphs(&remarks),
        })
    }

    /// Prints how τ of each report differs from that of the baseline, writes it where that is asked for, and with a bound fails
    /// where τ has fallen below it or something of the baseline is not compared.
    fn compare_with(
        &self,
        (name, baseline): &(String, Report),
        reports: &[(String, Report)],
        remarks: &[String],
    ) -> Result<()> {
        let compared = against::compared(baseline, reports)?;
        if let Some(file) = &self.csv {
            write(file, &paired_csv(&compared))?;
        }
        print(match self.json {
            true => against::as_json(name, &compared, remarks)?,
            false => against::told(&compared) + &paragraphs(remarks),
        })?;
        let bound = self.fail_below;
        bound.map_or(Ok(()), |least| against::judge(least, &compared))
    }

    /// Fails where a file is to be written whose name stands for standard output elsewhere.
    fn check(&self) -> Result<()> {
        for (option, file) in [("--csv", &self.csv), ("--html", &self.html)] {
            if file.as_deref() == Some(Path::new("-")) {
                let message = format!(
                    "`{option} -`: expected the name of a file, found `-`; `./-` is a file of that name, and `--json` prints \
                     everything to standard output"
                );
                return Err(Misuse(message).into());
            }
        }
        Ok(())
    }

    /// Fails where a file is to be written that is read, or that another one would take the place of.
    fn check_written(&self, found: &[Found]) -> Result<()> {
        let written = [
            ("--out", self.out.as_deref()),
            ("--html", self.html.as_deref()),
            ("--csv", self.csv.as_deref()),
        ];
        let written = written
            .into_iter()
            .filter_map(|(option, file)| Some((option, file?)));
        let written: Vec<(&str, &Path)> = written.collect();
        for (at, (option, file)) in written.iter().enumerate() {
            for Found {
                given, file: read, ..
            } in found
            {
                check_written(
                    option,
                    file,
                    &given.display().to_string(),
                    is_same(read, file),
                )?;
            }
            for (other, taken) in &written[..at] {
                let is_taken = is_same(taken, file) || whole(taken) == whole(file);
                check_written(option, file, other, is_taken)?;
            }
        }
        Ok(())
    }
}

/// What was noticed, as it stands below figures.
fn paragraphs(remarks: &[String]) -> String {
    let paragraph = |remark: &String| format!("\n{remark}\n");
    remarks.iter().map(paragraph).collect()
}

/// Writes the files that were asked for. Whether there were any.
fn write_files(
    arguments: &ReportArguments,
    out: Option<(&Path, Form)>,
    named: &[(String, Report)],
    remarks: &[String],
    trainings: &[(String, Vec<Curves>)],
) -> Result<bool> {
    let out = out.map(|(file, form)| match form {
        Form::Picture => (file, picture(named)),
        Form::Table => (file, compare(named) + &paragraphs(remarks)),
    });
    let html = arguments
        .html
        .as_deref()
        .map(|file| (file, page_with_curves(named, remarks, trainings)));
    // That of differences is written where they are found.
    let of_reports = arguments.csv.as_deref();
    let of_reports = of_reports.filter(|_| arguments.baseline.is_none());
    let csv = of_reports.map(|file| (file, csv(named)));
    let files: Vec<(&Path, String)> = [out, html, csv].into_iter().flatten().collect();
    for (file, text) in &files {
        write(file, text)?;
    }
    Ok(!files.is_empty())
}

/// The reports under their names, and what was noticed.
fn json(named: &[(String, Report)], remarks: &[String]) -> Result<String> {
    let reports: Vec<Value> = named
        .iter()
        .map(|(name, report)| json!({"name": name, "report": report}))
        .collect();
    let all = json!({"reports": reports, "remarks": remarks});
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

/// What is written of the reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Table,
    Picture,
}

impl Form {
    /// What a file of this name holds.
    fn of(file: &Path) -> Result<Self> {
        let ending = file.extension().unwrap_or_default().to_string_lossy();
        let ending = ending.to_lowercase();
        if TABLES.contains(&&*ending) {
            return Ok(Self::Table);
        }
        if PICTURES.contains(&&*ending) {
            return Ok(Self::Picture);
        }
        let known = TABLES.iter().chain(&PICTURES);
        let known: Vec<String> = known.map(|ending| format!("`.{ending}`")).collect();
        let message = format!(
            "`--out {}`: expected a name that ends in {}",
            printable(&file.display().to_string()),
            known.join(" or ")
        );
        Err(Misuse(message).into())
    }
}

/// The file that is meant by a file, a folder, or the name of a run.
fn file_of(given: &Path, runs: &Path) -> Result<PathBuf> {
    if given.is_file() {
        return Ok(given.to_owned());
    }
    let named = given
        .to_str()
        .and_then(|name| RunFolder::look(runs, name).ok());
    let folders = [Some(given), named.as_deref(), run_of_drafter(given)];
    let mut tried = folders.into_iter().flatten().flat_map(|folder| {
        let inside = INSIDE.iter().map(move |inside| folder.join(inside));
        inside.collect::<Vec<_>>()
    });
    if let Some(file) = tried.find(|file| file.is_file()) {
        return Ok(file);
    }
    let shown = printable(&given.display().to_string());
    if RunFolder::is_run(given) || named.is_some() {
        bail!("the run `{shown}` has no report yet: its stage `evaluate` has not run");
    }
    if given.join(CONFIG).is_file() {
        bail!(
            "no report of the drafter `{shown}`: `spectrain evaluate --drafter {shown} --out DIR` makes one"
        );
    }
    let what = if given.is_dir() {
        format!("it holds no `{}`", INSIDE.join("` and no `"))
    } else {
        format!(
            "there is no such file or folder, and no run `{}`{}",
            printable(&runs.join(given).display().to_string()),
            near_either(given, runs)
        )
    };
    bail!("no report `{shown}`: {what}")
}

/// The question behind a message that neither a path nor a run is there, where something has a similar name.
fn near_either(given: &Path, runs: &Path) -> String {
    let near = [runs.join(given), given.to_owned()].map(|path| near_file(&path));
    let found = near.into_iter().find(|near| !near.is_empty());
    found.unwrap_or_default()
}

/// The run whose drafter is in this folder, `RUN/export/drafter`.
fn run_of_drafter(folder: &Path) -> Option<&Path> {
    let run = folder.parent()?.parent()?;
    (folder.join(CONFIG).is_file() && RunFolder::is_run(run)).then_some(run)
}

fn read(given: &Path, file: PathBuf) -> Result<Found> {
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("cannot read the report `{}`", file.display()))?;
    let mut report = Report::from_json(&text)
        .with_context(|| format!("`{}` is not a report", file.display()))?;
    let stale = match run_of(&file) {
        Some(run) => {
            // Reports of earlier versions do not say.
            if report.prepared.is_empty() {
                report.prepared = prepared_in(run);
            }
            stale(run, stage_names::EVALUATE)?
        }
        None => changed_drafter(&report),
    };
    Ok(Found {
        given: given.to_owned(),
        file,
        report,
        stale,
    })
}

/// The run whose stage `evaluate` wrote this file.
fn run_of(file: &Path) -> Option<&Path> {
    let stage = file.parent()?;
    let run = stage.parent()?;
    (stage.file_name()? == stage_names::EVALUATE && RunFolder::is_run(run)).then_some(run)
}

/// Whether a report that stands alone is about a drafter that has changed. One that is not here any more has not.
fn changed_drafter(report: &Report) -> Option<String> {
    let folder = Path::new(&report.drafter.path);
    let now = target::sha256_of_drafter(folder).ok()?;
    (now != report.drafter.sha256 && !report.drafter.sha256.is_empty()).then(|| {
        format!(
            "the drafter `{}` has changed since",
            printable(&report.drafter.path)
        )
    })
}

/// The names of the table's rows: the run's, or what the user calls a file that stands alone. Where two are the same, so much of the path
/// is there too as tells them apart.
fn names(found: &[Found]) -> Vec<String> {
    let plain: Vec<String> = found
        .iter()
        .map(|found| match found.report.recipe["name"].as_str() {
            Some(name) => printable(name),
            None => printable(&found.given.display().to_string()),
        })
        .collect();
    let mut same: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, name) in plain.iter().enumerate() {
        same.entry(name).or_default().push(at);
    }
    let mut names = plain.clone();
    for group in same.into_values() {
        let files: Vec<&Path> = group.iter().map(|&at| found[at].file.as_path()).collect();
        let places: BTreeSet<PathBuf> = files.iter().map(whole).collect();
        if places.len() < 2 {
            continue;
        }
        for (at, place) in group.iter().zip(apart(&files)) {
            names[*at] = format!("{} ({place})", plain[*at]);
        }
    }
    names
}

/// A path by which no other file is called.
fn whole(path: &&Path) -> PathBuf {
    let found = path.canonicalize().or_else(|_| std::path::absolute(path));
    found.unwrap_or_else(|_| path.to_path_buf())
}

/// What tells paths apart: the parts in which they differ, from the first to the last of these; the whole path where one was
/// given twice.
fn apart(paths: &[&Path]) -> Vec<String> {
    let whole: Vec<PathBuf> = paths.iter().map(whole).collect();
    let parts: Vec<Vec<Component>> = whole
        .iter()
        .map(|path| path.components().collect())
        .collect();
    let same_at = |at: &dyn Fn(&[Component]) -> Option<String>| {
        let mut found = parts.iter().map(|parts| at(parts));
        let first = found.next().flatten();
        first.is_some() && found.all(|other| other == first)
    };
    let text = |part: &Component| part.as_os_str().to_string_lossy().into_owned();
    let before = (0..)
        .take_while(|&n| same_at(&|parts| parts.get(n).map(text)))
        .count();
    let after = (1..)
        .take_while(|&n| same_at(&|parts| parts.len().checked_sub(n).map(|at| text(&parts[at]))))
        .count();
    let shown = |(parts, path): (&Vec<Component>, &&Path)| {
        let end = parts.len().saturating_sub(after);
        let middle: PathBuf = parts.get(before..end).unwrap_or_default().iter().collect();
        let place = if middle.as_os_str().is_empty() {
            path.to_path_buf()
        } else {
            middle
        };
        printable(&place.display().to_string())
    };
    parts.iter().zip(paths).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn paths_are_told_apart_by_the_folders_in_which_they_differ() {
        let told = |paths: &[&str]| apart(&paths.iter().map(Path::new).collect::<Vec<_>>());
        let file = "evaluate/report.json";
        assert_eq!(
            told(&[&format!("a/x/{file}"), &format!("b/x/{file}")]),
            ["a", "b"]
        );
        assert_eq!(
            told(&[&format!("runs/x/{file}"), "judged/report.json"]),
            ["runs/x/evaluate", "judged"]
        );
        // The same one twice is given as it was called.
        assert_eq!(
            told(&["a/report.json", "a/report.json"]),
            ["a/report.json", "a/report.json"]
        );
    }

    #[test]
    fn a_difference_that_nothing_can_be_below_is_refused() {
        assert_eq!(difference("-0.05"), Ok(-0.05));
        assert_eq!(difference("-1e-2"), Ok(-0.01));
        assert_eq!(difference("0"), Ok(0.0));
        // A sign is easily left out.
        for given in ["nan", "-NaN", "inf", "-inf", "1e999", "", "a", "0.05"] {
            let refused = difference(given).unwrap_err();
            assert!(refused.contains(&format!("found `{given}`")), "{refused}");
        }
    }

    #[test]
    fn a_dash_is_no_file() {
        for option in ["--csv", "--html"] {
            let words = ["spectrain", "report", "none", option, "-"];
            let parsed = crate::cli::Arguments::try_parse_from(words).unwrap();
            let refused = parsed.run().unwrap_err();
            assert!(refused.is::<Misuse>(), "{refused:#}");
            assert!(refused.to_string().starts_with(&format!("`{option} -`")));
        }
    }

    #[test]
    fn only_files_that_can_hold_the_table_or_the_picture_are_written() {
        for out in ["a.md", "a/b.MD", "a.txt"] {
            assert_eq!(Form::of(Path::new(out)).unwrap(), Form::Table);
        }
        assert_eq!(Form::of(Path::new("a.svg")).unwrap(), Form::Picture);
        for out in ["a.html", "a", "a.json", "md"] {
            let error = Form::of(Path::new(out)).unwrap_err();
            assert!(error.is::<Misuse>(), "{error}");
            let text = error.to_string();
            assert!(
                text.contains(&format!("`--out {out}`")) && text.contains("`.md`"),
                "{text}"
            );
        }
    }
}
