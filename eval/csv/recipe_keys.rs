//! The keys of recipes in which reports differ: what was swept, whatever it was.
use serde_json::Value;

use crate::csv::cells::said;
use crate::report::Report;

/// The key that every run has a value of its own of.
const NAME: &str = "name";

/// The names of a table, and of the tables in it, on the way to a key.
type Path = Vec<String>;

/// The keys in which the recipes of some reports differ.
pub(super) struct Differing(Vec<Path>);

impl Differing {
    /// Those of `reports`, in the order of their first appearance, without the `known` ones (JSON pointers) and the run's name. A
    /// recipe that has a key's table and not the key has another value; one without the table, as that of `spectrain evaluate`, which
    /// trains nothing, has none.
    pub(super) fn of(reports: &[(String, Report)], known: &[&str]) -> Self {
        let mut paths: Vec<Path> = Vec::new();
        for (_, report) in reports {
            add_keys(&report.recipe, &[], &mut paths);
        }
        let is_known = |path: &Path| {
            let pointer: String = path.iter().map(|part| format!("/{part}")).collect();
            path[..] == [NAME] || known.contains(&pointer.as_str())
        };
        let differs = |path: &Path| {
            let with_table = reports
                .iter()
                .filter(|(_, report)| report.recipe.get(&path[0]).is_some());
            let mut values = with_table.map(|(_, report)| said(at(&report.recipe, path)));
            let first = values.next();
            values.any(|value| Some(&value) != first.as_ref())
        };
        paths.retain(|path| !is_known(path) && differs(path));
        Self(paths)
    }

    /// Their columns: `recipe.drafter.layers` and the like.
    pub(super) fn columns(&self) -> impl Iterator<Item = String> {
        self.0
            .iter()
            .map(|path| format!("recipe.{}", path.join(".")))
    }

    /// The values of a recipe in these columns; nothing in them without one.
    pub(super) fn cells(&self, recipe: Option<&Value>) -> impl Iterator<Item = String> {
        self.0
            .iter()
            .map(move |path| said(recipe.and_then(|recipe| at(recipe, path))))
    }
}

/// Adds the keys of a table, and of the tables in it, that are not among `found`.
fn add_keys(value: &Value, path: &[String], found: &mut Vec<Path>) {
    if let Value::Object(table) = value {
        for (key, value) in table {
            add_keys(value, &[path, std::slice::from_ref(key)].concat(), found);
        }
    } else if !path.is_empty() && !found.iter().any(|known| known == path) {
        found.push(path.to_vec());
    }
}

/// The value at a path.
fn at<'v>(recipe: &'v Value, path: &[String]) -> Option<&'v Value> {
    path.iter().try_fold(recipe, |table, key| table.get(key))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::examples;

    fn differing(recipes: &[Value]) -> (Vec<String>, Vec<Vec<String>>) {
        let with = |recipe: &Value| {
            let report = Report {
                recipe: recipe.clone(),
                ..examples::report()
            };
            (String::new(), report)
        };
        let reports: Vec<(String, Report)> = recipes.iter().map(with).collect();
        let found = Differing::of(&reports, &["/seed"]);
        let cells = recipes.iter();
        let cells = cells.map(|recipe| found.cells(Some(recipe)).collect());
        (found.columns().collect(), cells.collect())
    }

    #[test]
    fn each_key_that_differs_has_a_column() {
        let of = |layers: u64, name: &str| {
            json!({"name": name, "seed": layers, "drafter": {"layers": layers, "heads": 4},
                   "data": {"train": ["a", "b"]}})
        };
        let (columns, cells) = differing(&[of(1, "x"), of(2, "y")]);
        assert_eq!(columns, ["recipe.drafter.layers"]);
        assert_eq!(cells, [["1"], ["2"]]);
        assert!(differing(&[of(1, "x"), of(1, "y")]).0.is_empty());
    }

    #[test]
    fn a_key_that_another_family_lacks_differs_and_one_of_a_table_that_is_not_there_does_not() {
        let medusa =
            json!({"recipe": "medusa", "drafter": {"heads": [4, 5]}, "evaluate": {"count": 2}});
        let dflash =
            json!({"recipe": "dflash", "drafter": {"window": null}, "evaluate": {"count": 2}});
        // `spectrain evaluate` says nothing of a training.
        let judged = json!({"evaluate": {"count": 3}});
        let (columns, cells) = differing(&[medusa, dflash, judged]);
        let expected = [
            "recipe.recipe",
            "recipe.drafter.heads",
            "recipe.evaluate.count",
        ];
        assert_eq!(columns, expected);
        assert_eq!(
            cells,
            [["medusa", "[4,5]", "2"], ["dflash", "", "2"], ["", "", "3"]]
        );
        assert!(differing(&[json!("no table"), json!({})]).0.is_empty());
    }
}
