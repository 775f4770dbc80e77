# The commands that one repeats; `just` lists them.
default:
    @just --list

# Types and borrows of everything
check:
    cargo check --workspace --all-targets

# All tests, a process for each; `just test 'test(eagle3)'` runs some
test filter='all()':
    cargo nextest run --workspace -E '{{filter}}'

# Formatting and clippy
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings

# The benchmarks of tests/README.md
bench:
    cargo run --release -- bench

# The tables of keys, presets and other trainers' settings, and the schema, from the code
pages:
    UPDATE_PAGES=1 cargo test --test spectrain what_the_code_says

# The site, in book/site
site:
    .ci/site

# Everything that a change must pass
ci:
    .ci/run
