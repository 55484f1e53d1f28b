//! The structure of the repository: crate edges, file sizes, links in documents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn metadata(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args(arguments)
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Dependencies of each member on other members, less those for tests.
fn edges() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = metadata(&["--no-deps"]);
    let packages = metadata["packages"].as_array().unwrap();
    let names: BTreeSet<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let edges_of = |package: &Value| {
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let members = dependencies
            .filter(|dependency| dependency["kind"].is_null())
            .filter_map(|dependency| dependency["name"].as_str());
        members.filter(|name| names.contains(name)).map(str::to_owned).collect()
    };
    packages
        .iter()
        .map(|package| (package["name"].as_str().unwrap().to_owned(), edges_of(package)))
        .collect()
}

#[test]
fn crates_depend_only_along_the_data_flow() {
    let allowed = BTreeMap::from([
        ("trajectory", vec![]),
        ("inference", vec![]),
        ("proxy", vec!["trajectory"]),
        ("mcp-envs", vec!["trajectory"]),
        ("trainer", vec!["inference", "trajectory"]),
        ("cli", vec!["inference", "mcp-envs", "proxy", "trainer", "trajectory"]),
        ("tests", vec!["inference", "mcp-envs", "proxy", "trainer", "trajectory"]),
    ]);
    for (package, dependencies) in edges() {
        let allowed = allowed
            .get(package.as_str())
            .unwrap_or_else(|| panic!("{package} is a crate without a rule here"));
        for dependency in dependencies {
            assert!(
                allowed.contains(&dependency.as_str()),
                "{package} must not depend on {dependency}"
            );
        }
    }
}

/// Packages that the crate's ordinary build pulls in.
fn pulls(package: &str, features: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--locked",
            "--offline",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--format",
            "{p}",
            "-p",
            package,
        ])
        .args(features)
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn only_inference_and_trainer_link_libtorch() {
    for package in ["trajectory", "proxy", "mcp-envs"] {
        assert!(!pulls(package, &[]).contains("torch-sys"), "{package} links libtorch");
    }
    assert!(
        !pulls("cli", &["--no-default-features"]).contains("torch-sys"),
        "the recorder links libtorch"
    );
    assert!(
        pulls("cli", &[]).contains("torch-sys"),
        "this test no longer sees libtorch at all"
    );
}

#[test]
fn the_record_knows_neither_http_nor_mcp() {
    let packages = pulls("trajectory", &[]);
    for unwanted in ["hyper", "axum", "reqwest", "rmcp", "tokio"] {
        assert!(!packages.contains(unwanted), "trajectory pulls in {unwanted}");
    }
    for unwanted in ["tokenizers", "minijinja"] {
        assert!(!pulls("proxy", &[]).contains(unwanted), "proxy pulls in {unwanted}");
    }
}

fn tracked_files() -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split('\0')
        .filter(|name| !name.is_empty())
        .map(|name| root().join(name))
        .filter(|path| path.is_file())
        .collect()
}

#[test]
fn source_files_stay_readable() {
    for path in tracked_files()
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
    {
        let lines = std::fs::read_to_string(path).unwrap().lines().count();
        assert!(
            lines <= 500,
            "{} has {lines} lines: split it by responsibility",
            path.display()
        );
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(
            !matches!(name, "utils.rs" | "common.rs" | "helpers.rs"),
            "{} has no subject",
            path.display()
        );
    }
}

#[test]
fn links_in_documents_lead_somewhere() {
    for path in tracked_files()
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
    {
        let text = std::fs::read_to_string(path).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") || target.starts_with('#') || target.contains(' ') {
                continue;
            }
            let file = path.parent().unwrap().join(target.split('#').next().unwrap());
            assert!(
                file.try_exists().unwrap(),
                "{} links to {target}, which isn't there",
                path.display()
            );
        }
    }
}

#[test]
fn the_example_agent_is_an_ordinary_agent() {
    let text = std::fs::read_to_string(root().join("examples/nws/agent.py")).unwrap();
    assert!(
        text.lines().count() < 80,
        "the example agent has {} lines",
        text.lines().count()
    );
    assert!(
        !text.to_lowercase().contains("trainyard"),
        "the example agent knows of Trainyard"
    );
}
