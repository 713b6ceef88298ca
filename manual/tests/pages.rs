//! The pages of `docs` have the options that the programs have; `make install` writes a page for every program.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use clap::{Arg, ArgAction, Command};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs")
}

#[test]
fn tables_of_options_match_the_programs() {
    let write = std::env::var_os("FERROVIRT_BLESS").is_some();
    let mut shown = BTreeSet::new();
    for entry in fs::read_dir(docs()).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let page = fs::read_to_string(&file).unwrap();
        let (text, unknown) = manual::table::filled(&page);
        assert!(unknown.is_empty(), "{}: no such command: {unknown:?}", file.display());
        shown.extend(
            manual::table::commands_of(&page).iter().map(|words| words.split(' ').next().unwrap().to_owned()),
        );
        if write {
            fs::write(&file, &text).unwrap();
        } else {
            assert!(
                text == page,
                "{}: the options are stale; FERROVIRT_BLESS=1 cargo test -p manual writes them",
                file.display()
            );
        }
    }
    for command in manual::programs::commands() {
        assert!(
            shown.contains(command.get_name()),
            "no page of docs has the options of {}",
            command.get_name()
        );
    }
}

#[test]
fn every_program_has_a_manual_page_and_typed_ones_completions() {
    let folder = tempfile::tempdir().unwrap();
    manual::man::write(folder.path()).unwrap();
    manual::completion::write(folder.path()).unwrap();
    let names = |path: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(folder.path().join(path)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let pages = names("man/man1");
    for name in manual::programs::commands()
        .iter()
        .map(|command| command.get_name().to_owned())
        .chain(["cni".to_owned()])
    {
        assert!(pages.contains(&format!("{name}.1")), "{name} has no page: {pages:?}");
    }
    assert!(pages.contains("virt-node-run.1") && pages.contains("operator-manifests.1"), "{pages:?}");
    let page = fs::read_to_string(folder.path().join("man/man1/cni.1")).unwrap();
    assert!(page.contains("cni install") && page.starts_with(".TH cni 1"), "{page}");
    assert!(names("bash-completion/completions").contains("virt-node"));
    assert!(names("zsh/site-functions").contains("_kubectl-virt"));
    assert!(names("fish/vendor_completions.d").contains("importer.fish"));
}

#[test]
fn every_typed_program_has_examples_in_its_help() {
    for mut command in manual::programs::commands().into_iter().filter(manual::programs::is_typed) {
        let help = command.render_long_help().to_string();
        assert!(help.contains("Examples"), "{} --help has no examples:\n{help}", command.get_name());
    }
}

/// The sources of all programs as one text, without line breaks in string literals.
fn sources() -> String {
    let root = docs().parent().unwrap().to_owned();
    let listed = Process::new("git").args(["ls-files", "*.rs"]).current_dir(&root).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let files = String::from_utf8(listed.stdout).unwrap();
    let texts = files.lines().filter_map(|file| fs::read_to_string(root.join(file)).ok());
    texts
        .flat_map(|text| text.split("\\\n").map(|part| part.trim_start().to_owned()).collect::<Vec<_>>())
        .collect()
}

#[test]
fn texts_of_troubleshooting_are_those_of_the_programs() {
    let page = fs::read_to_string(docs().join("troubleshooting.md")).unwrap();
    let sources = sources();
    let mut rows = 0;
    for line in page.lines().filter_map(|line| line.strip_prefix("| `")) {
        let Some((text, _)) = line.split_once('`') else { continue };
        rows += 1;
        for part in text.split('…').map(str::trim).filter(|part| !part.is_empty()) {
            assert!(sources.contains(part), "no program has the text {part:?} of troubleshooting.md");
        }
    }
    assert!(rows > 20, "{rows} rows");
}

/// Paths in backquotes that begin with an entry of the checkout, with `{a,b}` written out.
fn paths(document: &str, top: &BTreeSet<String>) -> Vec<String> {
    let quoted = document.split('`').skip(1).step_by(2);
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./-{},".contains(c);
    let named = quoted.filter(|text| {
        text.chars().all(plain) && text.split_once('/').is_some_and(|(first, _)| top.contains(first))
    });
    named
        .flat_map(|text| match text.split_once('{').zip(text.split_once('}')) {
            Some(((before, _), (middle, after))) => middle
                .split_once('{')
                .map_or("", |(_, names)| names)
                .split(',')
                .map(|name| format!("{before}{name}{after}"))
                .collect(),
            None => vec![text.to_owned()],
        })
        .collect()
}

#[test]
fn files_named_in_documents_exist() {
    let root = docs().parent().unwrap().to_owned();
    let entries = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let top =
        entries(&root).iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    let folders =
        [root.clone(), docs(), docs().join("decisions"), docs().join("tutorials"), docs().join("runbooks")];
    let pages = folders.iter().flat_map(|folder| entries(folder));
    let (mut found, mut missing) = (0, Vec::new());
    for page in pages.filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
        for path in paths(&fs::read_to_string(&page).unwrap(), &top) {
            found += 1;
            if !root.join(&path).exists() {
                missing.push(format!("{}: {path}", page.display()));
            }
        }
    }
    assert!(found > 50, "{found}");
    assert!(missing.is_empty(), "{missing:#?}");
    let top = BTreeSet::from(["a".to_owned()]);
    assert_eq!(paths("see `a/{b,c}.rs`, `a/d`, `e/f` and `a b/c`", &top), ["a/b.rs", "a/c.rs", "a/d"]);
}

#[test]
fn a_table_has_the_subcommands_and_options_of_its_command() {
    let command = Command::new("a")
        .subcommand(Command::new("run").about("Run | it"))
        .arg(Arg::new("in").long("in").value_name("FILE").default_value("x").help("The\ninput"))
        .arg(Arg::new("q").short('q').long("quiet").action(ArgAction::SetTrue).help("Be quiet"))
        .arg(Arg::new("out").value_name("OUT").help("The output"))
        .next_help_heading("Logs")
        .arg(Arg::new("v").short('v').action(ArgAction::Count).help("More"))
        .arg(Arg::new("secret").long("secret").hide(true));
    let expected = "\
| command | |
|---|---|
| `run` | Run \\| it |

| option | environment | default | |
|---|---|---|---|
| `--in FILE` |  | `x` | The input |
| `-q, --quiet` |  |  | Be quiet |
| `OUT` |  |  | The output |
| **Logs** | | | |
| `-v` |  |  | More |
";
    assert_eq!(manual::table::table(&command), expected);
}

#[test]
fn only_the_text_between_marks_changes() {
    let page = "# A\n\n<!-- options: virt-node serve -->\nold\n<!-- end of options -->\n\nend\n\
                <!-- options: nothing -->\n<!-- end of options -->\n";
    let (text, unknown) = manual::table::filled(page);
    assert!(text.starts_with("# A\n\n<!-- options: virt-node serve -->\n| option |"), "{text}");
    assert!(!text.contains("\nold\n") && text.contains("\nend\n"), "{text}");
    assert_eq!(unknown, ["nothing"]);
    assert_eq!(manual::table::filled(&text).0, text, "filled twice");
}

#[test]
fn text_is_escaped_for_roff() {
    for (text, expected) in [
        ("--all", "\\-\\-all"),
        (".hidden", "\\&.hidden"),
        ("a.b", "a.b"),
        ("'quoted'", "\\&'quoted'"),
        ("a\\b", "a\\eb"),
    ] {
        assert_eq!(manual::man::escaped(text), expected, "{text}");
    }
}
