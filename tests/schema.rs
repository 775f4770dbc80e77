//! The schema of recipe files, against the recipes that are shipped and against ones that are wrong.
use serde_json::{Value, json};
use spectrain::cli::commands::schema;
use spectrain::families::registry::{RECIPES, Recipe};
use spectrain::recipe;

use crate::recipes::shipped;
use crate::workspace::Workspace;

fn is_of(kind: &str, value: &Value) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        other => panic!("type `{other}`"),
    }
}

/// What in `value` a schema does not allow. Knows the words that the schema of recipes is made of, and no others.
fn problem(root: &Value, schema: &Value, value: &Value) -> Option<String> {
    let rules = match schema {
        Value::Bool(allowed) => return (!allowed).then(|| format!("{value} is not allowed")),
        schema => schema.as_object().unwrap(),
    };
    let check = |schema: &Value| problem(root, schema, value);
    rules.iter().find_map(|(word, rule)| match word.as_str() {
        "$ref" => {
            let place = rule.as_str().unwrap().trim_start_matches('#');
            check(root.pointer(place).unwrap())
        }
        "allOf" => rule.as_array().unwrap().iter().find_map(check),
        "anyOf" | "oneOf" => {
            let problems: Vec<_> = rule.as_array().unwrap().iter().map(check).collect();
            let fit = problems.iter().filter(|problem| problem.is_none()).count();
            let fits = fit == 1 || fit > 1 && word == "anyOf";
            (!fits).then(|| format!("{value} fits {fit} of {problems:?}"))
        }
        "const" => (rule != value).then(|| format!("{value} is not {rule}")),
        "enum" => (!rule.as_array().unwrap().contains(value))
            .then(|| format!("{value} is none of {rule}")),
        "type" => {
            let is = is_of(rule.as_str().unwrap(), value);
            (!is).then(|| format!("{value} is no {rule}"))
        }
        "minimum" => {
            (value.as_f64()? < rule.as_f64().unwrap()).then(|| format!("{value} is below {rule}"))
        }
        "items" => value
            .as_array()?
            .iter()
            .find_map(|item| problem(root, rule, item)),
        "required" => {
            let missing = |key: &&Value| value.get(key.as_str().unwrap()).is_none();
            let missing = rule.as_array().unwrap().iter().find(missing)?;
            value.is_object().then(|| format!("{missing} is missing"))
        }
        "properties" => rule.as_object().unwrap().iter().find_map(|(key, schema)| {
            let inner = problem(root, schema, value.get(key)?)?;
            Some(format!("{key}: {inner}"))
        }),
        "propertyNames" => value
            .as_object()?
            .keys()
            .find_map(|key| problem(root, rule, &json!(key))),
        "additionalProperties" => {
            let known = rules.get("properties").and_then(Value::as_object);
            let further = value.as_object()?.iter();
            let further =
                further.filter(|(key, _)| known.is_none_or(|known| !known.contains_key(*key)));
            further
                .map(|(key, value)| (key, problem(root, rule, value)))
                .find_map(|(key, inner)| inner.map(|inner| format!("{key}: {inner}")))
        }
        "if" => match check(rule) {
            None => check(&rules["then"]),
            Some(_) => None,
        },
        "then" | "$schema" | "definitions" | "title" | "description" | "default" | "format" => None,
        other => panic!("the schema has the word `{other}`, which this test does not know"),
    })
}

fn whole() -> Value {
    schema::of(&RECIPES.iter().collect::<Vec<&Recipe>>()).to_value()
}

#[test]
fn every_shipped_recipe_names_the_schema_and_fits_it() {
    let schema = whole();
    for path in shipped() {
        let text = std::fs::read_to_string(&path).unwrap();
        let named = text.lines().next().unwrap().strip_prefix("#:schema ");
        let named =
            named.unwrap_or_else(|| panic!("{}: the first line names no schema", path.display()));
        let file = path.parent().unwrap().join(named);
        assert!(
            file.ends_with("schema.json") && file.is_file(),
            "{}",
            file.display()
        );
        let value: Value = toml::from_str(&text).unwrap();
        assert_eq!(
            problem(&schema, &schema, &value),
            None,
            "{}",
            path.display()
        );
    }
}

#[test]
fn what_the_program_writes_of_every_recipe_fits_the_schema() {
    let schema = whole();
    for kind in RECIPES {
        let text = format!("recipe = \"{}\"\nname = \"a\"\n[synthetic]\n", kind.name);
        let resolved = recipe::read(&text, &[]).unwrap();
        // What is written into the run.
        let value: Value = toml::from_str(&resolved.toml).unwrap();
        assert_eq!(problem(&schema, &schema, &value), None, "{}", kind.name);
        let own = schema::of(&[kind]).to_value();
        assert_eq!(problem(&own, &own, &value), None, "{}", kind.name);
    }
}

#[test]
fn what_the_program_refuses_does_not_fit_the_schema() {
    let schema = whole();
    for wrong in [
        "",
        "[train]\nstep = 1",
        "[train]\nsteps = -1",
        "[train]\nsteps = \"many\"",
        "[train]\nschedule = \"steep\"",
        "[drafter]\nmask_token = 1",
        "[objective]\ndivergence = { jsd = \"half\" }",
        "[objective]\ndivergence = { kl = 1 }",
        "[stages.align]\nsteps = 1",
        "[data]\ntrain = { path = \"a\", times = 2 }",
        "[evaluate]\ndrafts = [{ shape = \"static\", tree = \"oak\" }]",
        "[evaluate]\ndrafts = [{ shape = \"dynamic\" }]",
        "[export]\nto = [\"abacus\"]",
    ] {
        let start = match wrong {
            "" => "recipe = \"eagle4\"\nname = \"a\"\n[synthetic]\n",
            _ => "recipe = \"eagle3\"\nname = \"a\"\n[synthetic]\n",
        };
        let text = format!("{start}{wrong}\n");
        assert!(recipe::read(&text, &[]).is_err(), "{text}");
        let value: Value = toml::from_str(&text).unwrap();
        assert!(problem(&schema, &schema, &value).is_some(), "{text}");
    }
}

#[test]
fn the_schema_is_printed_for_all_recipes_or_for_one() {
    let workspace = Workspace::of("");
    let all = workspace.run(&["schema"]).succeeded();
    assert_eq!(serde_json::from_str::<Value>(&all.stdout).unwrap(), whole());
    let one = workspace.run(&["schema", "medusa"]).succeeded();
    assert!(!one.stdout.contains("Eagle3Config"), "{one:#?}");
    workspace
        .run(&["schema", "eagle4"])
        .misused(&["unknown recipe `eagle4`", "medusa"]);
}
