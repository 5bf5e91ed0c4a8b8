//! Man pages, one for each family, are those of the headers.

use expect_test::expect_file;
use roff::{bold, roman, Roff};

use crate::families::{file, FAMILIES};
use crate::headers;

/// A block of a header: its comment, and the declaration below.
struct Block {
    comment: Vec<String>,
    declaration: String,
}

/// The introduction of a header, and the blocks of its functions.
fn read(header: &str) -> (Vec<String>, Vec<Block>) {
    let uncommented = |line: &str| line.trim_start_matches("//").trim_start().to_owned();
    let introduction = header.lines().take_while(|line| line.starts_with("//"));
    // The first line says how it was made.
    let introduction = introduction.skip(2).map(uncommented).collect();
    let (_, functions) = header.split_once("extern \"C\" {\n").unwrap();
    let mut blocks = Vec::new();
    for text in functions.split("\n\n").filter(|text| text.contains(");")) {
        let (comment, rest): (Vec<_>, Vec<_>) = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .partition(|line| line.starts_with("//"));
        blocks.push(Block {
            comment: comment.into_iter().map(uncommented).collect(),
            declaration: rest.join("\n").trim().to_owned(),
        });
    }
    (introduction, blocks)
}

/// Adds paragraphs; a table stays as it is.
fn add(page: &mut Roff, lines: &[String]) {
    for paragraph in lines
        .split(|line| line.is_empty())
        .filter(|it| !it.is_empty())
    {
        let is_table = paragraph[0].starts_with('|');
        page.control("PP", []);
        if is_table {
            page.control("nf", []);
        }
        let text = paragraph
            .join(if is_table { "\n" } else { " " })
            .replace('`', "");
        page.text([roman(text)]);
        if is_table {
            page.control("fi", []);
        }
    }
}

fn page(name: &str, header: &str) -> String {
    let (introduction, blocks) = read(header);
    let mut page = Roff::new();
    page.control(
        "TH",
        [
            &*format!("qnic_{name}"),
            "3",
            "",
            "qnic",
            "The C interface of qnic",
        ],
    );
    // Names in capital letters stay whole.
    page.control("nh", []);
    page.control("SH", ["NAME"]);
    let first = introduction.join(" ");
    let (first, _) = first
        .split_once(". ")
        .unwrap_or((first.trim_end_matches('.'), ""));
    page.text([roman(format!("qnic_{name} - {}", first.replace('`', "")))]);
    page.control("SH", ["SYNOPSIS"]);
    page.control("nf", []);
    page.text([bold("#include <qnic.h>")]);
    page.text([roman(format!(
        "\nConstants and structures: <qnic/{name}.h>"
    ))]);
    page.control("fi", []);
    page.control("SH", ["DESCRIPTION"]);
    add(&mut page, &introduction);
    page.control("SH", ["FUNCTIONS"]);
    for block in &blocks {
        page.control("PP", []);
        page.control("nf", []);
        page.text([bold(&block.declaration)]);
        page.control("fi", []);
        page.control("RS", []);
        add(&mut page, &block.comment);
        page.control("RE", []);
    }
    page.control("SH", ["SEE ALSO"]);
    let others = FAMILIES
        .iter()
        .map(|(other, _)| *other)
        .filter(|other| *other != name);
    let others: Vec<_> = others.map(|other| format!("qnic_{other}(3)")).collect();
    page.text([roman(others.join(", "))]);
    page.to_roff()
}

#[test]
fn man_pages_are_those_of_the_headers() {
    headers::check();
    for (name, _) in FAMILIES {
        let header = std::fs::read_to_string(file(&format!("include/qnic/{name}.h"))).unwrap();
        let made = page(name, &header);
        expect_file![file(&format!("man/qnic_{name}.3"))].assert_eq(&made);
    }
}
