//! What the tool is called: `cargo qnic` in a clone, and `qnic` where it is installed. Texts are written for a clone.

use std::borrow::Cow;

use clap::Command;
use qnic_images::Installed;

const IN_A_CLONE: &str = "cargo qnic";
const INSTALLED: &str = "qnic";

/// `text` as it is for the running program.
pub(crate) fn in_text(text: &str) -> Cow<'_, str> {
    match Installed::of_this_program() {
        Some(_) => text.replace(IN_A_CLONE, INSTALLED).into(),
        None => text.into(),
    }
}

/// `command` as it is for the running program.
pub(crate) fn in_command(command: Command) -> Command {
    match Installed::of_this_program() {
        Some(_) => installed(command),
        None => command,
    }
}

/// `command`, with its help, as it is for an installed program.
pub(crate) fn installed(command: Command) -> Command {
    examples(command.bin_name(INSTALLED))
}

fn examples(command: Command) -> Command {
    let help = command.get_after_help().map(ToString::to_string);
    let command = match help {
        Some(help) => command.after_help(help.replace(IN_A_CLONE, INSTALLED)),
        None => command,
    };
    command.mut_subcommands(examples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_of_an_installed_program_has_its_name() {
        let up = Command::new("up").after_help("cargo qnic up x\ncargo qnic down");
        let mut all = installed(Command::new("qnic").bin_name(IN_A_CLONE).subcommand(up));
        all.build();
        let up = all.find_subcommand_mut("up").unwrap();
        let help = up.render_long_help().to_string();
        assert!(help.contains("Usage: qnic up"), "{help}");
        assert!(help.ends_with("qnic up x\nqnic down\n"), "{help}");
        assert!(!help.contains("cargo"), "{help}");
    }
}
