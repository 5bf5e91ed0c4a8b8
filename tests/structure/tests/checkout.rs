//! The checks, applied to the checkout.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::process::Command;

use qnic_structure::modules::{between_children, Tree};
use qnic_structure::packages::{misplaced, packages, packages_with_circles, MOST_PACKAGES};
use qnic_structure::prose::Rules;
use qnic_structure::sources::{self, Source};
use qnic_structure::{requirements, surface, tidy, tour, words};

/// A document, and all other texts but those of this crate, which are about both.
fn document_and_others(path: &str) -> (String, Vec<Source>) {
    let extensions = ["rs", "c", "h", "md", "lua", "toml"];
    let mut sources = sources::read(&sources::checkout(), &extensions).unwrap();
    sources.retain(|source| !source.path.starts_with("tests/structure"));
    let index = sources.iter().position(|source| source.path == path);
    (sources.remove(index.unwrap()).text, sources)
}

fn assert_none<T: Debug>(found: impl IntoIterator<Item = T>, what: &str) {
    let found: Vec<_> = found.into_iter().collect();
    assert!(found.is_empty(), "{what}: {found:#?}");
}

/// No word that was replaced comes back.
#[test]
fn glossary() {
    let (glossary, others) = document_and_others("docs/glossary.md");
    let glossary = Source {
        path: "docs/glossary.md".into(),
        text: glossary,
    };
    let returned = |source| words::returned(words::REPLACED, source);
    let all = others.iter().chain([&glossary]);
    assert_none(all.flat_map(returned), "words that replaced.txt names");
}

/// No package has a circle of imports: neither its library nor its programs, examples and tests.
#[test]
fn arrows_go_one_way() {
    let found = packages_with_circles(&sources::checkout()).unwrap();
    assert_none(found, "circles");
}

/// Each package has a row in the table of rooms, and needs only what stands above it.
#[test]
fn packages_are_rooms() {
    let root = sources::checkout();
    let packages = packages(&root).unwrap();
    let document = std::fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    assert_none(
        misplaced(&packages, &document),
        "packages and docs/architecture.md",
    );
    assert!(
        packages.len() <= MOST_PACKAGES,
        "{} packages",
        packages.len()
    );
}

/// No word for people means a program, and each phrase that `prose.toml` allows is there.
#[test]
fn prose() {
    let root = sources::checkout();
    let rules = std::fs::read_to_string(root.join("tests/structure/prose.toml")).unwrap();
    let rules = Rules::parse(&rules).unwrap();
    let extensions = ["rs", "c", "h", "lua", "in", "md", "toml", "yml"];
    let mut sources = sources::read(&root, &extensions).unwrap();
    for folder in ["ci", "images/guest", ".ci", ".github"] {
        let mut others = sources::read(&root.join(folder), &["", "yml"]).unwrap();
        let path = |source: &mut Source| source.path = format!("{folder}/{}", source.path);
        others.iter_mut().for_each(path);
        sources.append(&mut others);
    }
    let about_them = [
        "tests/structure/prose.toml",
        "tests/structure/tests/made_up.rs",
    ];
    sources.retain(|source| !about_them.contains(&&*source.path));
    let mut used = Vec::new();
    let found = sources
        .iter()
        .flat_map(|source| rules.found(source, &mut used));
    assert_none(found, "words for people");
    let unused = rules.people.iter().filter(|phrase| !used.contains(phrase));
    assert_none(unused, "phrases of prose.toml that nothing says");
}

/// Core and transport import neither each other nor what stands on them; protocols import
/// the trait, and not each other; all fields of `Nic` are private.
#[test]
fn the_nic_can_grow() {
    let tree = Tree::read(&sources::checkout().join("device-backend/nic/src/lib.rs")).unwrap();
    let arrows = tree.arrows();
    let mut upwards = between_children(&arrows, "crate");
    upwards.retain(|arrow| match arrow.from.as_str() {
        "nic" => false,
        "protocols" => arrow.to == "nic",
        _ => ["nic", "protocols", "core", "transport"].contains(&&*arrow.to),
    });
    assert_none(upwards, "imports from below, or between core and transport");
    let mut protocols = between_children(&arrows, "crate::protocols");
    protocols.retain(|arrow| arrow.to != "protocol");
    assert_none(protocols, "imports between protocols");
    assert!(arrows
        .iter()
        .any(|arrow| arrow.from.starts_with("crate::protocols::")));
    assert_none(
        tree.open_fields("Nic").unwrap(),
        "fields of Nic that are not private",
    );
}

/// `Endpoint` has a method for each kind of operation, and not for each way to begin one.
#[test]
fn the_endpoint_is_small() {
    let library = sources::checkout().join("guest-lib/src");
    let mut sources = sources::read(&library, &["rs"]).unwrap();
    // It has an `Endpoint` of its own.
    sources.retain(|source| !source.path.starts_with("stream_protocol"));
    let methods = surface::public_methods(&sources, "Endpoint").unwrap();
    assert!(methods.len() > 10, "{methods:#?}");
    assert!(methods.len() <= surface::MAX_METHODS, "{methods:#?}");
}

/// A program in a guest links nothing of host mode: neither the driver core nor the device.
#[test]
fn a_guest_program_links_no_host_mode() {
    let tree = |features: &[&str]| {
        let arguments = ["tree", "-p", "qnic", "-e", "normal", "--prefix", "none"];
        let command = Command::new(env!("CARGO"))
            .args(arguments)
            .args(features)
            .current_dir(sources::checkout())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&command.stderr);
        assert!(command.status.success(), "{said}");
        String::from_utf8(command.stdout).unwrap()
    };
    let of_host_mode = |tree: &str| {
        let names = tree.lines().filter_map(|line| line.split(' ').next());
        let host = |name: &&str| {
            let own = [
                "qnic-host",
                "qnic-vfio",
                "qnic-driver",
                "qnic-device",
                "qnic-nic",
            ];
            ["vhost", "vm", "vfio"]
                .iter()
                .any(|own| name.starts_with(own))
                || own.contains(name)
        };
        names.filter(host).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(of_host_mode(&tree(&[])).contains(&"qnic-driver".to_owned()));
    assert_none(of_host_mode(&tree(&["--no-default-features"])), "linked");
    let all_else = "--features=parallel,remote-memory,stream,tokio";
    let tree = tree(&["--no-default-features", all_else]);
    assert_none(of_host_mode(&tree), "linked");
}

/// Every code that is cited is defined, and what is not built has no test. Prints for every
/// row the tests that cite it (`--nocapture`).
#[test]
fn requirements() {
    let (document, others) = document_and_others("docs/requirements.md");
    let rows = requirements::rows(&document);
    let defined: BTreeSet<_> = rows.iter().map(|row| row.code).collect();
    assert_eq!(defined.len(), rows.len(), "a row stands twice");
    let citations: Vec<_> = others.iter().flat_map(requirements::citations).collect();
    let unknown = citations
        .iter()
        .filter(|cite| !defined.contains(&*cite.code));
    assert_none(unknown, "cited, but not in docs/requirements.md");

    for row in rows {
        let (code, state) = (row.code, row.state);
        let cite = citations.iter().filter(|cite| cite.code == code);
        let tests: BTreeSet<_> = cite.filter_map(|cite| cite.test.as_ref()).collect();
        println!("{code} ({state})");
        tests.iter().for_each(|test| println!("    {test}"));
        if tests.is_empty() {
            println!("    no test cites it");
        } else {
            assert_ne!(state, "no", "{code} has tests");
        }
    }
}

/// Each test that a row of the requirements names is there, and a promise that holds has one.
#[test]
fn tests_of_requirements() {
    let (document, others) = document_and_others("docs/requirements.md");
    let tests: BTreeSet<_> = others.iter().flat_map(requirements::tests).collect();
    let rows = requirements::rows(&document);
    let named = rows.iter().flat_map(|row| {
        let absent = row.tests.iter().filter(|name| !tests.contains(**name));
        absent.map(|name| (row.code, name))
    });
    assert_none(named, "tests that are named, but not there");
    let bare = rows
        .iter()
        .filter(|row| row.holds() && row.tests.is_empty());
    assert_none(bare, "rows that say yes and name no test");
}

/// No file and no function is longer than [CONTRIBUTING.md](../../../CONTRIBUTING.md) says.
#[test]
fn files_and_functions_are_short() {
    let sources = sources::read(&sources::checkout(), &["rs", "c", "h", "lua"]).unwrap();
    let lines = |source: &Source| source.text.lines().count();
    let long = sources
        .iter()
        .filter(|source| lines(source) > tidy::MAX_FILE);
    assert_none(long.map(|source| &source.path), "files that are too long");
    let rust = sources.iter().filter(|source| source.is("rs"));
    let long = rust.flat_map(|source| tidy::long_functions(source).unwrap());
    let is = |long: &str, (path, name): &(&str, &str)| {
        long.starts_with(path) && long.contains(&format!(" {name} ("))
    };
    let known = |long: &String| LONG.iter().any(|one| is(long, one));
    assert_none(
        long.filter(|long| !known(long)),
        "functions that are too long",
    );
}

/// Functions that were longer when this was first checked, most of them tables. None is added.
const LONG: [(&str, &str); 7] = [
    ("abi/tests/golden.rs:", "the_bodies_of_all_other_kinds"),
    ("abi/tests/layout.rs:", "layouts"),
    ("device-backend/examples/measure.rs:", "main"),
    (
        "device-backend/nic/src/protocols/collective/members.rs:",
        "receive_form",
    ),
    (
        "device-backend/nic/tests/contexts.rs:",
        "a_context_that_lies_fails_by_its_doorbell_and_hurts_nobody",
    ),
    ("tests/fuzz/src/control.rs:", "request"),
    ("tests/fuzz/src/frames.rs:", "body"),
];

/// Links of documents lead to files, and to headings that are there.
#[test]
fn links_lead_somewhere() {
    let root = sources::checkout();
    let documents = sources::read(&root, &["md"]).unwrap();
    let dead = documents
        .iter()
        .flat_map(|document| tidy::dead_links(&root, document));
    assert_none(dead, "links that lead nowhere");
}

/// The stops of docs/tour.md exist, and their files are as many as it says.
#[test]
fn the_tour_leads_through_the_tree() {
    let docs = sources::checkout().join("docs");
    let text = std::fs::read_to_string(docs.join("tour.md")).unwrap();
    assert_none(tour::errors(&docs, &text), "stops of docs/tour.md");
}

/// The versions of ABI and wire are in CHANGELOG.md, and in docs/wire.md.
#[test]
fn changes_of_layouts_are_told() {
    let read = |path: &str| std::fs::read_to_string(sources::checkout().join(path)).unwrap();
    let abi = tidy::constant(&read("abi/src/lib.rs"), "ABI_VERSION").unwrap();
    let wire = tidy::constant(&read("abi/src/wire.rs"), "WIRE_VERSION").unwrap();
    let row = format!("| {abi} | {wire} | ");
    assert!(
        read("CHANGELOG.md").contains(&row),
        "CHANGELOG.md lacks {row}"
    );
    let field = format!("| \"qn\", {wire} |");
    assert!(
        read("docs/wire.md").contains(&field),
        "docs/wire.md lacks {field}"
    );
}

/// The book has every document.
#[test]
fn every_document_is_in_the_book() {
    let docs = sources::checkout().join("docs");
    let documents = sources::read(&docs, &["md"]).unwrap();
    let (summary, others): (Vec<_>, Vec<_>) = documents
        .iter()
        .partition(|document| document.path == "SUMMARY.md");
    let listed = |path: &str| summary[0].text.contains(&format!("({path})"));
    let missing = others.iter().filter(|document| !listed(&document.path));
    assert_none(missing.map(|document| &document.path), "not in the book");
}

/// What CI systems run is run: each script of this repository's own pipelines by a workflow.
#[test]
fn every_script_of_ci_is_run_by_a_workflow() {
    let checkout = sources::checkout();
    let workflows = sources::read(&checkout.join(".github/workflows"), &["yml"]).unwrap();
    assert!(!workflows.is_empty());
    let runs = |script: &str| {
        let line = format!("run: ci/{script}");
        let mut lines = workflows.iter().flat_map(|workflow| workflow.text.lines());
        lines.any(|text| text.trim_start_matches([' ', '-']).starts_with(&line))
    };
    // Those of others' pipelines are in the action and the template.
    let missing = ["book", "deny", "lint", "release", "suite"].into_iter();
    assert_none(missing.filter(|script| !runs(script)), "run by no workflow");
    let known = [
        "action",
        "book",
        "deny",
        "gitlab.yml",
        // No script: a dashboard.
        "grafana.json",
        "lint",
        "qnic",
        "release",
        "rustdoc",
        "suite",
        "trial",
    ];
    let scripts = std::fs::read_dir(checkout.join("ci")).unwrap();
    let scripts = scripts.map(|script| script.unwrap().file_name().into_string().unwrap());
    assert_none(
        scripts.filter(|script| !known.contains(&&**script)),
        "not in the list above",
    );
}

/// A counter of a NIC stands in its table, where it happens, and in no other file but those of tests:
/// all that shows it reads the table. So a new one costs these two, and the list of
/// docs/metrics.md that a test renews.
#[test]
fn a_counter_stands_in_its_table_and_where_it_happens() {
    const TABLE: &str = "device-backend/nic/src/counters.rs";
    let (table, mut others) = document_and_others(TABLE);
    let rows = table.split("struct Counters").nth(1).unwrap();
    let rows = rows.split("impl Counters").next().unwrap();
    let fields = rows.split(';').filter_map(|row| row.rsplit_once('='));
    let names = fields.flat_map(|(_, fields)| fields.split(|it| ",{}".contains(it)));
    // Words such as "commands" mean other things, too.
    let names: Vec<_> = names
        .map(str::trim)
        .filter(|name| name.contains('_') && !name.contains(' '))
        .collect();
    assert!(names.len() > 25, "{names:?}");
    let shows = [
        "abi/src",
        "guest-driver/",
        "guest-lib/src/nic",
        "device-backend/src",
        "device-backend/links",
        "cli/src",
    ];
    others.retain(|source| {
        shows.iter().any(|room| source.path.starts_with(room)) && !source.path.contains("test")
    });
    let named = others.iter().flat_map(|source| {
        let mut words = source
            .text
            .split(|it: char| !it.is_alphanumeric() && it != '_');
        let name = words.find(|word| names.contains(word) && *word != "protection_errors");
        name.map(|name| (&source.path, name))
    });
    assert_none(named, "counters that a file names which only shows them");
}
