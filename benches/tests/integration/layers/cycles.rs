//! Import cycles between the files of a crate: none but those of [`WAIVED`], which may only become fewer and smaller.
//!
//! A file imports another one by `use` or by a path that begins with `crate`, `super`, `self` or a child module. Re-exports
//! are followed to the file that has the item. Comments, texts and test modules do not count. Globs are imports of the
//! module they name. A module may use the modules below it, and those its items: that pair alone is no cycle.
//!
//! Not here: dependencies between crates.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{members, root, sources};

/// A cycle that exists. Cut it; never add one.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Waiver {
    /// The crate's directory.
    folder: &'static str,
    /// The files of the cycle, below `src`.
    files: &'static [&'static str],
    /// The import that closes the cycle, and so the item that must move to cut it.
    because: &'static str,
}

/// The cycles that exist.
const WAIVED: &[Waiver] = &[];

/// Re-exports that are followed, one behind the other.
const REEXPORTS: usize = 8;

/// Modules by path (`""` is the root, `a::b` a module), with their files.
struct Crate {
    modules: BTreeMap<String, Module>,
}

struct Module {
    file: String,
    /// The imports of the file, as absolute paths in the crate: the name it has here, and its path.
    imports: Vec<(String, Vec<String>)>,
    /// Absolute paths of the crate that the file mentions, imports among them.
    mentions: BTreeSet<Vec<String>>,
}

/// The path of the module in a file below `src`; `None` for another program's root.
fn module_of(file: &str) -> Option<String> {
    let path = file.strip_suffix(".rs")?;
    if matches!(path, "lib" | "main") {
        return Some(String::new());
    }
    if path.starts_with("bin/") {
        return None;
    }
    Some(path.strip_suffix("/mod").unwrap_or(path).replace('/', "::"))
}

/// Source without comments, texts and what follows `#[cfg(test)]`.
fn code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |at| &rest[at..]);
        } else if rest.starts_with("/*") {
            rest = rest.find("*/").map_or("", |at| &rest[at + 2..]);
        } else if let Some(raw) = raw_text(rest) {
            out.push_str("\"\"");
            rest = &rest[raw..];
        } else if c == '"' {
            out.push_str("\"\"");
            rest = &rest[text_length(rest)..];
        } else if c == '\'' && char_length(rest) > 0 {
            rest = &rest[char_length(rest)..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    without_tests(&out)
}

/// The length of a raw text that begins here.
fn raw_text(text: &str) -> Option<usize> {
    let after = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let at = body.find(&end)?;
    Some(text.len() - body.len() + at + end.len())
}

/// The length of a text in quotes that begins here.
fn text_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a character in quotes that begins here; 0 for a lifetime.
fn char_length(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => {
            text[2..].char_indices().skip(1).find(|(_, c)| *c == '\'').map_or(0, |(at, _)| at + 3)
        }
        Some(_) => match chars.next() {
            Some((at, '\'')) => at + 1,
            _ => 0,
        },
        None => 0,
    }
}

/// Code without the items that only tests have.
fn without_tests(code: &str) -> String {
    let mut out = String::new();
    let mut rest = code;
    while let Some(at) = rest.find("#[cfg(test)]") {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = match (rest.find('{'), rest.find(';')) {
            (Some(open), semicolon) if semicolon.is_none_or(|semicolon| open < semicolon) => {
                let mut depth = 0;
                rest[open..]
                    .char_indices()
                    .find(|(_, c)| {
                        depth += i32::from(*c == '{') - i32::from(*c == '}');
                        depth == 0
                    })
                    .map(|(at, _)| open + at + 1)
            }
            (_, Some(semicolon)) => Some(semicolon + 1),
            (_, None) => None,
        };
        rest = end.map_or("", |end| &rest[end..]);
    }
    out.push_str(rest);
    out
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The words and punctuation of a code; `::` is one.
fn tokens(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = code.trim_start();
    while let Some(c) = rest.chars().next() {
        let size = if is_word(c) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            c.len_utf8()
        };
        found.push(&rest[..size]);
        rest = rest[size..].trim_start();
    }
    found
}

/// Reads the tree of paths that begins at `at` (behind its first segments `so_far`), and gives every leaf with the name it
/// is imported by. Returns the place behind it.
fn leaves(
    tokens: &[&str],
    mut at: usize,
    so_far: &[String],
    found: &mut Vec<(String, Vec<String>)>,
) -> usize {
    let mut path = so_far.to_vec();
    loop {
        match tokens.get(at) {
            Some(&"{") => {
                at += 1;
                while tokens.get(at).is_some_and(|token| *token != "}") {
                    let next = leaves(tokens, at, &path, found);
                    at = next.max(at + 1);
                    if tokens.get(at) == Some(&",") {
                        at += 1;
                    }
                }
                return at + 1;
            }
            Some(&"*") => {
                found.push(("*".to_owned(), path));
                return at + 1;
            }
            Some(word) if word.starts_with(is_word) => {
                if *word != "self" || path.is_empty() {
                    path.push((*word).to_owned());
                }
                at += 1;
            }
            _ => return at,
        }
        if tokens.get(at) == Some(&"::") {
            at += 1;
            continue;
        }
        let mut name = path.last().cloned().unwrap_or_default();
        if tokens.get(at) == Some(&"as") {
            name = tokens.get(at + 1).copied().unwrap_or_default().to_owned();
            at += 2;
        }
        found.push((name, path));
        return at;
    }
}

/// A path as it is written in `module`, from the crate's root; `None` for one of another crate.
fn absolute(module: &str, path: &[String], children: &BTreeSet<String>) -> Option<Vec<String>> {
    let mut here: Vec<String> =
        module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => {
            here.clear();
            rest = &rest[1..];
        }
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|part| part == "super") {
                here.pop();
                rest = &rest[1..];
            }
        }
        child if children.contains(child) => {}
        _ => return None,
    }
    here.extend_from_slice(rest);
    Some(here)
}

impl Crate {
    fn read(folder: &Path) -> Self {
        let files: Vec<(String, String)> =
            sources(folder).into_iter().filter_map(|file| Some((module_of(&file)?, file))).collect();
        let names: BTreeSet<&str> = files.iter().map(|(module, _)| module.as_str()).collect();
        let mut modules = BTreeMap::new();
        for (module, file) in &files {
            let prefix = if module.is_empty() { String::new() } else { format!("{module}::") };
            let children: BTreeSet<String> = names
                .iter()
                .filter_map(|name| name.strip_prefix(&prefix))
                .filter(|name| !name.is_empty() && !name.contains("::"))
                .map(str::to_owned)
                .collect();
            let code = code(&fs::read_to_string(folder.join(file)).unwrap());
            modules.insert(module.clone(), Module::read(file.clone(), module, &tokens(&code), &children));
        }
        Self { modules }
    }

    /// The file that has what a path names.
    fn file(&self, path: &[String], follow: usize) -> Option<&str> {
        let mut module = String::new();
        for (index, part) in path.iter().enumerate() {
            let child = if module.is_empty() { part.clone() } else { format!("{module}::{part}") };
            if self.modules.contains_key(&child) {
                module = child;
                continue;
            }
            let import = self.modules.get(&module)?.imports.iter().find(|(name, _)| name == part);
            if let Some((_, target)) = import
                && follow > 0
            {
                let target: Vec<String> = target.iter().chain(&path[index + 1..]).cloned().collect();
                return self.file(&target, follow - 1);
            }
            break;
        }
        self.modules.get(&module).map(|module| module.file.as_str())
    }

    /// The files that each file imports, without those of modules below its own.
    fn edges(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let of = |(name, module): (&String, &Module)| {
            let below = |file: &&str| {
                let other = module_of(file).unwrap_or_default();
                other == *name || name.is_empty() || other.starts_with(&format!("{name}::"))
            };
            let files = module.mentions.iter().filter_map(|path| self.file(path, REEXPORTS));
            files.filter(|file| !below(file)).collect()
        };
        self.modules.iter().map(|(name, module)| (module.file.as_str(), of((name, module)))).collect()
    }
}

impl Module {
    fn read(file: String, module: &str, tokens: &[&str], children: &BTreeSet<String>) -> Self {
        let mut found = Self { file, imports: Vec::new(), mentions: BTreeSet::new() };
        let mut at = 0;
        while at < tokens.len() {
            let is_use = tokens[at] == "use";
            let begins_path = tokens.get(at + 1) == Some(&"::")
                && (at == 0 || tokens[at - 1] != "::")
                && (matches!(tokens[at], "crate" | "self" | "super") || children.contains(tokens[at]));
            if !is_use && !begins_path {
                at += 1;
                continue;
            }
            let mut paths = Vec::new();
            let next = leaves(tokens, at + usize::from(is_use), &[], &mut paths);
            for (name, path) in paths {
                let Some(path) = absolute(module, &path, children) else { continue };
                if is_use {
                    found.imports.push((name, path.clone()));
                }
                found.mentions.insert(path);
            }
            at = next.max(at + 1);
        }
        found
    }
}

/// The sets of files that import each other, directly or by others.
fn cycles(edges: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<BTreeSet<String>> {
    let reached = |from: &str| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&str> = edges[from].iter().copied().collect();
        while let Some(file) = next.pop() {
            if seen.insert(file) {
                next.extend(&edges[file]);
            }
        }
        seen
    };
    let reaches: BTreeMap<&str, BTreeSet<&str>> = edges.keys().map(|file| (*file, reached(file))).collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (file, reached) in &reaches {
        if reached.contains(file) && !found.iter().any(|cycle| cycle.contains(*file)) {
            let cycle = reached.iter().filter(|other| reaches[**other].contains(file));
            found.push(cycle.map(|file| (*file).to_owned()).collect());
        }
    }
    found
}

#[test]
fn files_of_a_crate_have_no_import_cycles() {
    let mut faults = Vec::new();
    let mut gone = WAIVED.to_vec();
    for member in members().values() {
        let of_crate = Crate::read(&root().join(&member.folder).join("src"));
        for cycle in cycles(&of_crate.edges()) {
            let waived = |one: &Waiver| {
                one.folder == member.folder && cycle.iter().all(|file| one.files.contains(&file.as_str()))
            };
            match WAIVED.iter().find(|one| waived(one)) {
                Some(one) => gone.retain(|other| other != one),
                None => faults.push(format!("{}: {cycle:?}", member.folder)),
            }
        }
    }
    assert!(faults.is_empty(), "import cycles: {faults:#?}");
    let gone = gone.iter().map(|one| format!("{} {:?}: {}", one.folder, one.files, one.because));
    let gone: Vec<String> = gone.collect();
    assert!(gone.is_empty(), "these cycles are cut, remove them from WAIVED: {gone:#?}");
}

#[test]
fn cycles_are_found_through_reexports_and_relative_paths() {
    let folder = std::env::temp_dir().join(format!("cycles-{}", std::process::id()));
    fs::create_dir_all(folder.join("b")).unwrap();
    for (file, text) in [
        ("lib.rs", "mod a; mod b; mod d; pub use b::Thing; // crate::a::x\nfn f() { a::g() }"),
        (
            "a.rs",
            "use crate::{Thing, d::{self, One as Two}};\npub fn g() { let _ = \"crate::b::c\"; d::h() }",
        ),
        ("b/mod.rs", "mod c; pub use c::Thing;"),
        ("b/c.rs", "pub struct Thing; fn x<'a>(c: &'a char) { super::super::a::g(); '\"'; }"),
        ("d.rs", "pub fn h() {}\n#[cfg(test)]\nmod tests { use crate::a; }"),
    ] {
        fs::write(folder.join(file), text).unwrap();
    }
    let of_crate = Crate::read(&folder);
    fs::remove_dir_all(&folder).unwrap();
    let edges = of_crate.edges();
    let expected = |files: &[&'static str]| files.iter().copied().collect::<BTreeSet<&str>>();
    assert_eq!(edges["lib.rs"], expected(&[]));
    assert_eq!(edges["a.rs"], expected(&["b/c.rs", "d.rs"]));
    assert_eq!(edges["b/c.rs"], expected(&["a.rs"]));
    assert_eq!(edges["d.rs"], expected(&[]));
    assert_eq!(cycles(&edges), [["a.rs", "b/c.rs"].map(str::to_owned).into()]);
}
