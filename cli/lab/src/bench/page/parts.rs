//! What pages are made of: the layout, machines, and words for places and sizes.

use maud::{html, Markup, PreEscaped, DOCTYPE};

use super::super::figures::Row;
use super::super::machine::{Machine, Sources};

const STYLE: &str = include_str!("style.css");

/// A whole page.
pub(super) fn layout(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { main { (body) } }
        }
    };
    page.into_string()
}

/// Title, machine and sources.
pub(super) fn head(title: &str, machine: &Machine, sources: &Sources) -> Markup {
    html! {
        header {
            h1 { (title) }
            (about(machine, sources))
        }
    }
}

/// A machine and what was measured on it, in a line.
pub(super) fn about(machine: &Machine, sources: &Sources) -> Markup {
    let or_unknown = |text: &str| match text {
        "" => "unknown".to_owned(),
        text => text.to_owned(),
    };
    let commit: String = sources.commit.chars().take(12).collect();
    let virtual_ = if machine.is_virtual { ", virtual" } else { "" };
    let gib = machine.memory_mib as f64 / 1024.0;
    html! {
        dl.machine {
            div { dt { "Machine" } dd { (machine.cores) " cores, " (or_unknown(&machine.model)) (virtual_) } }
            div { dt { "Memory" } dd { (format!("{gib:.0} GiB")) } }
            div { dt { "Kernel" } dd { (or_unknown(&machine.kernel)) } }
            div { dt { "Guests under" } dd { (or_unknown(&machine.accelerator)) } }
            div { dt { "Commit" } dd {
                code { (or_unknown(&commit)) } @if sources.modified { ", modified" }
            } }
        }
    }
}

/// What a row is of, for people: its name, and at how much of what.
pub(super) fn row_name(row: &Row) -> String {
    match &row.at {
        Some(at) => format!("{}, {}", row.name, at_text(&at.what, at.value)),
        None => row.name.clone(),
    }
}

/// How much of what.
pub(super) fn at_text(what: &str, value: f64) -> String {
    match (what, what.strip_prefix("% ")) {
        ("bytes", _) => bytes(value),
        (_, Some(what)) => format!("{value} % {what}"),
        _ => format!("{value} {what}"),
    }
}

/// A number of bytes with a unit.
pub(super) fn bytes(value: f64) -> String {
    let (kib, mib) = (1024.0, 1024.0 * 1024.0);
    match value {
        value if value >= mib && value % mib == 0.0 => format!("{} MiB", value / mib),
        value if value >= kib && value % kib == 0.0 => format!("{} KiB", value / kib),
        value => format!("{value} B"),
    }
}

/// A place with one digit after the point.
pub(super) fn short(place: f64) -> String {
    format!("{place:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let texts = [8.0, 1500.0, 4096.0, 1048576.0].map(bytes);
        assert_eq!(texts, ["8 B", "1500 B", "4 KiB", "1 MiB"]);
        assert_eq!(at_text("% loss", 0.1), "0.1 % loss");
        assert_eq!(at_text("peers", 16.0), "16 peers");
    }
}
