//! `spectrain recipe --sweep` and `--vary`: one recipe trained with every combination of some values, or with one change at a
//! time, and tables of what came of it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, Result};
use serde_json::Value;
use spectrain_checkpoints::hash::sha256_bytes;
use spectrain_eval::{TrainedSeed, Variation};

use crate::cli::arguments::key_value;
use crate::errors::Misuse;
use crate::recipe::resolved::ResolvedRecipe;
use crate::runs::run_folder::RunFolder;
use crate::runs::run_folder::identity::LONGEST_NAME;
use crate::runs::training_time::training_seconds;
use crate::stages::report;

/// Runs that one command makes, at most.
const MOST: usize = 1000;
/// Digits of the hash with which a name ends that would be too long.
const HASHED: usize = 8;
/// The key whose values are not told apart in the table, but pooled.
const SEED: &str = "seed";
/// The key that every run has a value of its own of.
const NAME: &str = "name";
/// The tables that decide nothing of what is trained, each with what to do where nothing else is swept.
const UNTRAINED: [(&str, &str); 3] = [
    (
        "evaluate",
        "`[evaluate]` takes several settings at once, such as `draft_lengths = [3, 5]`, and `spectrain evaluate` judges a drafter \
         anew",
    ),
    (
        "export",
        "`spectrain export` writes a trained drafter once more, in another type or for another engine",
    ),
    ("track", "where figures are sent changes no drafter"),
];

/// Keys that decide which target drafters are judged by, and on what.
const JUDGED_BY: [&str; 10] = [
    "target.model",
    "target.revision",
    "target.dtype",
    "evaluate.targets",
    "evaluate.prompts",
    "evaluate.count",
    "evaluate.max_new_tokens",
    "data.template",
    "data.template_variables",
    "data.date",
];
/// Those that decide which prompts are held out, where no others are evaluated.
const HELD_OUT_BY: [&str; 5] = [
    "data.eval",
    "data.held_out",
    "data.train",
    "data.preset",
    "data.max_samples",
];

/// A key and the values that it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Swept {
    key: String,
    values: Vec<String>,
}

impl FromStr for Swept {
    type Err = String;

    /// Reads `KEY=VALUE,VALUE,…`; commas within brackets, braces and quotes are part of a value.
    fn from_str(given: &str) -> Result<Self, String> {
        let given = key_value(given)?;
        let (key, values) = given.split_once('=').unwrap_or_default();
        let values = parts(values, ',');
        if values.iter().any(String::is_empty) {
            return Err("expected KEY=VALUE,VALUE,… with no value empty".into());
        }
        Ok(Self {
            key: key.trim().to_owned(),
            values,
        })
    }
}

/// Changes to a recipe, of which each is tried by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Varied(Vec<Combination>);

impl FromStr for Varied {
    type Err = String;

    /// Reads `KEY=VALUE,VALUE,…`, a change for each value, or `KEY=VALUE; KEY=VALUE; …`, one change of several keys.
    fn from_str(given: &str) -> Result<Self, String> {
        let swept = parts(given, ';').into_iter().map(|part| part.parse());
        let swept: Vec<Swept> = swept.collect::<Result<_, _>>()?;
        if swept.iter().any(|swept| swept.key == SEED) {
            return Err(format!(
                "`{SEED}` belongs to `--sweep`, which trains every change with each of its values and pools them"
            ));
        }
        if let [Swept { key, values }] = &*swept {
            let each = values.iter();
            let each = each.map(|value| Combination::default().with(key, value));
            return Ok(Self(each.collect()));
        }
        let mut change = Combination::default();
        for Swept { key, values } in swept {
            let [value] = &*values else {
                let found = values.join(",");
                return Err(format!(
                    "expected one value for each key of KEY=VALUE; KEY=VALUE, found `{key}={found}`"
                ));
            };
            if change.has(&key) {
                return Err(format!("`{key}` is given twice"));
            }
            change = change.with(&key, value);
        }
        Ok(Self(vec![change]))
    }
}

/// What stands between separators, without spaces around it; those within brackets, braces and quotes separate nothing.
fn parts(given: &str, separator: char) -> Vec<String> {
    let (mut depth, mut quoted, mut all) = (0, None, vec![String::new()]);
    for c in given.chars() {
        match (c, quoted) {
            ('"' | '\'', None) => quoted = Some(c),
            (_, Some(quote)) if c == quote => quoted = None,
            ('[' | '{', None) => depth += 1,
            (']' | '}', None) => depth -= 1,
            (c, None) if depth == 0 && c == separator => {
                all.push(String::new());
                continue;
            }
            _ => {}
        }
        all.iter_mut().last().into_iter().for_each(|of| of.push(c));
    }
    all.iter().map(|part| part.trim().to_owned()).collect()
}

/// Values of keys, in the order of the keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Combination(Vec<(String, String)>);

impl Combination {
    fn with(&self, key: &str, value: &str) -> Self {
        let mut more = self.0.clone();
        more.push((key.to_owned(), value.to_owned()));
        Self(more)
    }

    fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(own, _)| own == key)
    }

    /// What `--set` would be given for it. Names are made of it, so it does not set one.
    pub(super) fn overrides(&self) -> Vec<String> {
        let others = self.0.iter().filter(|(key, _)| key != NAME);
        others
            .map(|(key, value)| format!("{key}={value}"))
            .collect()
    }

    /// What the table calls it.
    fn variation(&self) -> String {
        let others = self.0.iter().filter(|(key, _)| key != SEED);
        match words(others, ", ") {
            none if none.is_empty() => "the recipe as it is".into(),
            words => words,
        }
    }

    /// The name of its run. One that would be too long is cut, and ends in a hash of the whole, which tells it from others.
    fn run_name(&self, recipe: &str) -> String {
        let plain = |c: char| match c {
            '=' => '-',
            c if c.is_ascii_alphanumeric() || "-_.".contains(c) => c,
            _ => '_',
        };
        let words = words(self.0.iter(), "-");
        if words.is_empty() {
            return recipe.to_owned();
        }
        let name = format!("{recipe}-{}", words.chars().map(plain).collect::<String>());
        if name.len() <= LONGEST_NAME {
            return name;
        }
        let hash = sha256_bytes(format!("{recipe}-{words}").as_bytes());
        let head: String = name.chars().take(LONGEST_NAME - 1 - HASHED).collect();
        format!("{head}-{}", &hash[..HASHED])
    }
}

impl fmt::Display for Combination {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match words(self.0.iter(), ", ") {
            none if none.is_empty() => f.write_str(&self.variation()),
            words => f.write_str(&words),
        }
    }
}

/// Tables of which no two have a key of one name, nor one with the name of a key of no table: these keys go by their last parts.
const SHORT: [&str; 4] = ["drafter", "objective", "train", "data"];
/// But for this one, which `objective` has too.
const WHOLE: &str = "train.keep";

/// Values with their keys, which go by their last parts where these say which key it is.
fn words<'a>(values: impl Iterator<Item = &'a (String, String)>, between: &str) -> String {
    let parts = values.map(|(key, value)| {
        let short = key.split_once('.');
        let short = short.filter(|(table, _)| SHORT.contains(table) && key != WHOLE);
        let key = short.map_or(&**key, |(_, rest)| rest);
        format!("{key}={value}")
    });
    parts.collect::<Vec<_>>().join(between)
}

/// The recipe as it is and with each change, where there are changes, and each of these with every combination of what is
/// swept, the last key's values the fastest.
pub(super) fn combinations(varied: &[Varied], swept: &[Swept]) -> Result<Vec<Combination>> {
    let changes = varied.iter().flat_map(|Varied(changes)| changes.clone());
    let mut found: Vec<Combination> = [Combination::default()]
        .into_iter()
        .chain(changes)
        .collect();
    for (at, Swept { key, values }) in swept.iter().enumerate() {
        if let Some(earlier) = swept[..at].iter().find(|earlier| earlier.key == *key) {
            return Err(Misuse(format!(
                "`--sweep`: `{key}` is given twice; give all of its values at once: `--sweep {key}={},{}`",
                earlier.values.join(","),
                values.join(",")
            ))
            .into());
        }
        if found.iter().any(|change| change.has(key)) {
            return Err(Misuse(format!(
                "`{key}` is given to both `--vary` and `--sweep`; `--sweep` tries each of its values with every change"
            ))
            .into());
        }
        let with_each = |before: &Combination| -> Vec<Combination> {
            values.iter().map(|value| before.with(key, value)).collect()
        };
        found = found.iter().flat_map(with_each).collect();
        if found.len() > MOST {
            break;
        }
    }
    if found.len() > MOST {
        return Err(Misuse(format!(
            "`--sweep` and `--vary`: expected at most {MOST} combinations, found {} or more",
            found.len()
        ))
        .into());
    }
    Ok(found)
}

/// The recipe of each combination of values for that of this name; `read` reads it with overrides.
pub(super) fn recipes(
    base: &str,
    combinations: &[Combination],
    read: &dyn Fn(&[String]) -> Result<ResolvedRecipe>,
) -> Result<Vec<ResolvedRecipe>> {
    let mut recipes: Vec<ResolvedRecipe> = Vec::new();
    for combination in combinations {
        let mut overrides = combination.overrides();
        overrides.push(format!("{NAME}={}", combination.run_name(base)));
        let recipe = read(&overrides).with_context(|| combination.to_string())?;
        if recipes.iter().any(|other| other.name == recipe.name) {
            let message = format!(
                "`--sweep`, `--vary`: two combinations would share the run `{}`",
                recipe.name
            );
            return Err(Misuse(message).into());
        }
        let mut alike = recipes.iter().filter(|other| trained_alike(other, &recipe));
        if let Some(other) = alike.next() {
            let message = format!(
                "`--sweep`, `--vary`: expected another drafter of each combination, found that `{}` and `{}` would train the same one; {}",
                other.name,
                recipe.name,
                instead(other, &recipe)
            );
            return Err(Misuse(message).into());
        }
        recipes.push(recipe);
    }
    check_comparable(&recipes)?;
    Ok(recipes)
}

/// What to do in place of training the drafter of both recipes twice.
fn instead(one: &ResolvedRecipe, other: &ResolvedRecipe) -> String {
    let mut untrained = UNTRAINED.iter();
    let differs = |(table, _): &&(&str, &str)| one.json[*table] != other.json[*table];
    if let Some((_, advice)) = untrained.find(differs) {
        return (*advice).to_owned();
    }
    let differs =
        |(table, key, _): &(&str, &str, &str)| one.json[*table][*key] != other.json[*table][*key];
    match unread(one, other).find(differs) {
        Some((table, key, why)) => format!("nothing reads `{table}.{key}`: {why}"),
        None => "give each value once".into(),
    }
}

/// The keys, by their tables, that are set in one of two recipes and that nothing reads there, each with why. If the other one reads
/// them, the two differ in more than these.
fn unread(
    one: &ResolvedRecipe,
    other: &ResolvedRecipe,
) -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    one.unread().into_iter().chain(other.unread())
}

/// Whether two recipes train the same drafter, whatever it is called, however it is written, judged and told of, and whatever is set
/// that nothing reads.
fn trained_alike(one: &ResolvedRecipe, other: &ResolvedRecipe) -> bool {
    let trained = |recipe: &ResolvedRecipe| {
        let mut json = recipe.json.clone();
        let untrained = UNTRAINED.iter().map(|(table, _)| *table);
        for key in untrained.chain([NAME]) {
            json[key] = Value::Null;
        }
        for (table, key, _) in unread(one, other) {
            json[table][key] = Value::Null;
        }
        json
    };
    trained(one) == trained(other)
}

/// Fails where combinations make targets of their own: drafters for different targets are not compared.
fn check_comparable(recipes: &[ResolvedRecipe]) -> Result<()> {
    let made = |recipe: &ResolvedRecipe| {
        let table = &recipe.json["synthetic"];
        table
            .is_object()
            .then(|| (table.clone(), recipe.json[SEED].clone()))
    };
    if recipes
        .windows(2)
        .all(|pair| made(&pair[0]) == made(&pair[1]))
    {
        return Ok(());
    }
    let message = "`--sweep`, `--vary`: expected one target for all combinations, found `[synthetic]`, which makes another target for \
                   each `seed` and for each value of its own keys; make the target once, and take a recipe whose \
                   `target.model`, `data.train` and `data.eval` are the `target`, `train.jsonl` and `eval.jsonl` in the \
                   `synthetic` folder of that run";
    Err(Misuse(message.into()).into())
}

/// Fails where combinations would surely be judged by different targets or on other prompts, of which no τ is compared.
pub(super) fn check_judged_alike(recipes: &[ResolvedRecipe]) -> Result<()> {
    let [first, others @ ..] = recipes else {
        return Ok(());
    };
    for other in others {
        let sets_are_named = [first, other].map(|recipe| !recipe.evaluate.sets().is_empty());
        // With data of their own to evaluate with, nothing is held out of what is trained on.
        let have_eval = [first, other].map(|of| of.data.eval.is_some() || of.synthetic.is_some());
        let held_out_by = match (sets_are_named, have_eval) {
            ([true, true], _) => &HELD_OUT_BY[..0],
            (_, [true, true]) => &HELD_OUT_BY[..1],
            _ => &HELD_OUT_BY[..],
        };
        for key in JUDGED_BY.iter().chain(held_out_by) {
            let [one, two] = [first, other].map(|recipe| value(recipe, key));
            if one == two {
                continue;
            }
            let advice = match held_out_by.contains(key) {
                true => "; with `data.eval`, one for all, or sets in `evaluate.prompts` all are",
                false => "",
            };
            return Err(Misuse(format!(
                "`--sweep`, `--vary`: expected runs that are all judged by the same target on the same prompts, found `{key}` = {one} in \
                 `{}` and {two} in `{}`{advice}",
                first.name, other.name
            ))
            .into());
        }
    }
    Ok(())
}

/// The value of a key in a resolved recipe.
fn value<'a>(recipe: &'a ResolvedRecipe, key: &str) -> &'a Value {
    key.split('.').fold(&recipe.json, |table, key| &table[key])
}

/// What has come of each combination with its recipe and, unless it failed, its run.
pub(super) fn variations<'a>(
    trained: impl Iterator<Item = (&'a Combination, &'a ResolvedRecipe, Option<PathBuf>)>,
) -> Result<Vec<Variation>> {
    let mut variations: Vec<Variation> = Vec::new();
    for (combination, recipe, run) in trained {
        let name = combination.variation();
        let known = variations.iter().position(|known| known.name == name);
        let at = known.unwrap_or_else(|| {
            variations.push(Variation {
                name,
                seeds: Vec::new(),
                failed: Vec::new(),
            });
            variations.len() - 1
        });
        let seed = recipe.json[SEED].to_string();
        let Some(run) = run else {
            variations[at].failed.push(seed);
            continue;
        };
        let run = RunFolder::unlocked(run);
        let seconds = training_seconds(run.path(), recipe.training_stages())?;
        variations[at].seeds.push(TrainedSeed {
            seed,
            seconds: Some(seconds),
            report: report::read(&run)?,
        });
    }
    Ok(variations)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::recipe;
    use crate::runs::run_folder::{Existing, RunName, Start, check_name};

    fn swept(given: &str) -> Swept {
        given.parse().unwrap()
    }

    #[test]
    fn commas_within_a_value_do_not_end_it() {
        let found = swept("drafter.layers=[1, 2],[3] , \"a,b\",{ x = 1, y = [2] }");
        let values = ["[1, 2]", "[3]", "\"a,b\"", "{ x = 1, y = [2] }"];
        assert_eq!(
            (&*found.key, found.values),
            ("drafter.layers", values.map(String::from).to_vec())
        );
        for wrong in ["a=", "a=1,", "a", "=1"] {
            assert!(wrong.parse::<Swept>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_combination_has_a_run_of_its_own() {
        let swept = [swept("train.learning_rate=1e-3,2e-3"), swept("seed=0,1")];
        let all = combinations(&[], &swept).unwrap();
        let names: Vec<String> = all.iter().map(|of| of.run_name("a")).collect();
        let expected = [
            "a-learning_rate-1e-3-seed-0",
            "a-learning_rate-1e-3-seed-1",
            "a-learning_rate-2e-3-seed-0",
            "a-learning_rate-2e-3-seed-1",
        ];
        assert_eq!(names, expected);
        assert_eq!(all[2].to_string(), "learning_rate=2e-3, seed=0");
        assert_eq!(all[2].variation(), "learning_rate=2e-3");
        let odd = Combination::default().with("drafter.y", "[1, 2]");
        assert_eq!(odd.run_name("a"), "a-y-_1__2_");
        let many = format!("x={}", ["1"; 40].join(","));
        let many = [self::swept(&many), self::swept(&many.replace('x', "y"))];
        let refused = combinations(&[], &many).unwrap_err().to_string();
        assert!(refused.contains("found 1600"), "{refused}");
    }

    #[test]
    fn a_name_that_would_be_too_long_is_cut_and_still_tells_runs_apart() {
        let long = |layers: &str| {
            let given = format!(
                "train.optimizer=muon; train.learning_rate=1e-3; train.weight_decay=0.01; train.ema_decay=0.99; \
                 objective.divergence={{ sum = {{ kl = 0.9, tv = 0.1 }} }}; drafter.captured_layers={layers}"
            );
            let Varied(changes): Varied = given.parse().unwrap();
            changes[0].run_name("p")
        };
        // It stays the same, so that a sweep finds its runs again.
        let expected = "p-optimizer-muon-learning_rate-1e-3-weight_decay-0.01-ema_decay-0.99-divergence-__sum_-___kl_-_0.9__tv_-_0.1____\
                        -captur-c735e2b1";
        assert_eq!(long("[0, 1, 2]"), expected);
        assert_eq!(expected.len(), LONGEST_NAME);
        assert_ne!(long("[0, 1, 3]"), expected);
        check_name(expected).unwrap();
        let fits = Combination::default().with("x", &"1".repeat(LONGEST_NAME - 4));
        assert_eq!(fits.run_name("p").len(), LONGEST_NAME);
        assert!(fits.run_name("p").ends_with("11111111"));
    }

    #[test]
    fn keys_that_go_by_their_last_parts_are_told_apart_by_them() {
        let schema: Value = serde_json::from_str(include_str!("../../../schema.json")).unwrap();
        let keys = |of: &Value| -> Vec<String> {
            let of = if of["$ref"].is_null() {
                &of["allOf"][0]
            } else {
                of
            };
            let name = of["$ref"].as_str().unwrap_or_default();
            let name = name.rsplit('/').next().unwrap_or_default();
            let table = schema["definitions"][name]["properties"].as_object();
            table.map_or_else(Vec::new, |keys| keys.keys().cloned().collect())
        };
        let tables = schema["properties"].as_object().unwrap();
        let rules = schema["allOf"].as_array().unwrap();
        assert_eq!(rules.len(), crate::families::registry::RECIPES.len());
        for rule in rules {
            let of_no_table = tables.keys().filter(|key| keys(&tables[*key]).is_empty());
            let mut all: Vec<String> = of_no_table.cloned().collect();
            for table in SHORT {
                let own = &rule["then"]["properties"][table];
                let own = if own.is_object() { own } else { &tables[table] };
                let found = keys(own);
                assert!(!found.is_empty(), "{table} of {}", rule["if"]);
                let short = |key: &String| format!("{table}.{key}") != WHOLE;
                all.extend(found.into_iter().filter(short));
            }
            all.sort();
            let twice = all.windows(2).find(|pair| pair[0] == pair[1]);
            assert_eq!(twice, None, "{}", rule["if"]);
        }
        let other = Combination::default().with("evaluate.seed", "1");
        assert_eq!(other.run_name("r"), "r-evaluate.seed-1");
        assert_eq!(other.variation(), "evaluate.seed=1");
    }

    #[test]
    fn what_trains_the_same_drafter_twice_is_refused() {
        let text =
            "recipe = \"eagle3\"\nname = \"a\"\ntarget.model = \"t\"\ndata.train = \"d.jsonl\"\n";
        let read = |overrides: &[String]| recipe::read(text, overrides);
        for (set, told) in [
            ("evaluate.draft_lengths=[3],[5]", "`draft_lengths = [3, 5]`"),
            ("objective.decay=0.8,0.80", "give each value once"),
            ("export.dtype=f32,bf16", "`spectrain export` writes"),
        ] {
            let all = combinations(&[], &[swept(set)]).unwrap();
            let refused = recipes("a", &all, &read).unwrap_err();
            assert!(refused.is::<Misuse>());
            let refused = refused.to_string();
            assert!(
                refused.contains("the same one") && refused.contains(told),
                "{refused}"
            );
        }
        let default: Varied = "objective.divergence=kl".parse().unwrap();
        let all = combinations(&[default], &[]).unwrap();
        let refused = recipes("a", &all, &read).unwrap_err().to_string();
        assert!(refused.contains("`a` and `a-divergence-kl`"), "{refused}");
        // Nor is another one trained with what nothing reads.
        let text = text.replace("eagle3", "dflash");
        let with = |set: &str, more: &str| {
            let all = combinations(&[], &[swept(set)]).unwrap();
            let more = [more.to_owned(), "drafter.mask_token=5".into()];
            let read = |overrides: &[String]| recipe::read(&text, &[overrides, &more[..]].concat());
            recipes("a", &all, &read)
        };
        let (weights, rank) = ("objective.selector_weight=1.0,0.5", "drafter.selector_rank");
        let refused = with(weights, &format!("{rank}=0")).unwrap_err().to_string();
        let told = "nothing reads `objective.selector_weight`: the drafter has no selector";
        assert!(refused.contains(told), "{refused}");
        assert_eq!(with(weights, &format!("{rank}=4")).unwrap().len(), 2);
        let ranks = format!("{rank}=0,4");
        let both = with(&ranks, "objective.selector_weight=0.5");
        assert_eq!(both.unwrap().len(), 2);
    }

    #[test]
    fn changes_are_tried_one_at_a_time_beside_the_recipe_as_it_is() {
        let varied = ["train.x=1,2", "data.y=3; data.z=[4, 5]"].map(|given| given.parse().unwrap());
        let seeds = [swept("seed=0,1")];
        let all = combinations(&varied, &seeds).unwrap();
        let each: Vec<String> = all.iter().map(|of| of.run_name("r")).collect();
        let expected = ["", "x-1-", "x-2-", "y-3-z-_4__5_-"];
        let expected = expected.map(|of| [0, 1].map(|seed| format!("r-{of}seed-{seed}")));
        assert_eq!(each, expected.concat());
        assert_eq!(all[0].variation(), "the recipe as it is");
        assert_eq!(all[7].variation(), "y=3, z=[4, 5]");
        assert_eq!(all[7].overrides(), ["data.y=3", "data.z=[4, 5]", "seed=1"]);
        // The recipe as it is has its own run.
        let alone = combinations(&varied, &[]).unwrap();
        assert_eq!(alone[0].run_name("r"), "r");
        assert_eq!(alone[0].to_string(), "the recipe as it is");
        assert_eq!(alone.len(), 4);
        for (wrong, told) in [
            ("seed=1", "`seed` belongs to `--sweep`"),
            ("a=1,2; b=3", "one value for each key"),
            ("a=1; a=2", "given twice"),
            ("a=1;", "expected KEY=VALUE"),
        ] {
            let refused = wrong.parse::<Varied>().unwrap_err();
            assert!(refused.contains(told), "{refused}");
        }
        let refused = combinations(&varied, &[swept("data.z=1")]).unwrap_err();
        assert!(refused.to_string().contains("both"), "{refused}");
    }

    #[test]
    fn what_is_known_to_be_judged_otherwise_is_refused_by_its_key() {
        let refusal = |more: &str, set: &str| {
            let text = "recipe = \"eagle3\"\nname = \"a\"\ntarget.model = \"t\"\ndata.train = \"d.jsonl\"\n";
            let text = format!("{text}{more}\n");
            let varied: Vec<Varied> = match set.contains(';') {
                true => vec![set.parse().unwrap()],
                false => Vec::new(),
            };
            let swept: Vec<Swept> = match varied.is_empty() {
                true => vec![swept(set)],
                false => Vec::new(),
            };
            let all = combinations(&varied, &swept).unwrap();
            let read = |overrides: &[String]| recipe::read(&text, overrides);
            let recipes = recipes("a", &all, &read).unwrap();
            check_judged_alike(&recipes).err().map(|error| {
                assert!(error.is::<Misuse>(), "{error}");
                error.to_string()
            })
        };
        let eval = "data.eval = \"e.jsonl\"";
        for (more, set, told) in [
            (
                "",
                "data.max_samples=10,20",
                "`data.max_samples` = 10 in `a-max_samples-10` and 20",
            ),
            ("", "data.train=a.jsonl,b.jsonl", "`data.train`"),
            (eval, "data.eval=e.jsonl,f.jsonl", "`data.eval`"),
            (
                eval,
                "evaluate.max_new_tokens=8; train.steps=7",
                "`evaluate.max_new_tokens`",
            ),
            (eval, "target.model=t,u", "`target.model`"),
        ] {
            let refused = refusal(more, set).unwrap();
            assert!(refused.contains(told), "{refused}");
        }
        let told = refusal("", "data.held_out=0.1,0.2").unwrap();
        assert!(
            told.contains("`data.held_out`") && told.contains("with `data.eval`"),
            "{told}"
        );
        for set in [
            "data.max_samples=10,20",
            "data.train=a.jsonl,b.jsonl",
            "seed=1,2",
        ] {
            assert_eq!(refusal(eval, set), None, "{set}");
        }
    }

    #[test]
    fn a_training_took_what_all_of_its_processes_took() {
        let root = tempfile::tempdir().unwrap();
        let text =
            "recipe = \"eagle3\"\nname = \"a\"\ntarget.model = \"t\"\ndata.train = \"d.jsonl\"\n";
        let recipe = recipe::read(text, &[]).unwrap();
        let name = RunName {
            root: root.path(),
            name: "a",
            recipe: "eagle3",
        };
        let run = RunFolder::open(name, text, Existing::Continue).unwrap();
        let seconds = || training_seconds(run.path(), recipe.training_stages()).unwrap();
        assert_eq!(seconds(), 0.0);
        let manifest = run.start("train", Start::default()).unwrap();
        // The last of them took a second.
        let summary = json!({"fit": {"seconds": 100.5}});
        run.finish(manifest, 1.0, summary).unwrap();
        assert_eq!(seconds(), 100.5);
    }

    #[test]
    fn a_key_that_is_swept_twice_is_refused_with_what_is_meant() {
        let given = [swept("seed=1"), swept("train.steps=2"), swept("seed=2,[3]")];
        let refused = combinations(&[], &given).unwrap_err();
        assert!(refused.is::<Misuse>());
        let refused = refused.to_string();
        assert!(refused.ends_with("`--sweep seed=1,2,[3]`"), "{refused}");
    }
}
