use super::*;
use serde_json::json;

fn check(raw: serde_json::Value) -> Result<ProxyConfig, String> {
    let raw: RawProxyConfig = serde_json::from_value(raw).map_err(|error| error.to_string())?;
    ProxyConfig::try_from(raw).map_err(|error| error.to_string())
}

#[test]
fn a_small_configuration_gets_defaults() {
    let config = check(json!({"upstreams": [{"name": "p", "url": "http://h", "policy": true}],
        "mcp_servers": [{"name": "nws", "command": ["x"], "call_timeout_seconds": 1.5}]}))
    .unwrap();
    assert_eq!(config.limits, Limits::default());
    assert_eq!(config.mcp_servers[0].call_timeout, Duration::from_millis(1500));
}

#[test]
fn what_is_wrong_is_named() {
    let upstream = json!({"name": "p", "url": "http://h", "policy": true});
    for (raw, words) in [
        (json!({}), "no upstream is configured"),
        (json!({"upstream": []}), "unknown field `upstream`"),
        (json!({"upstreams": [upstream, upstream]}), "`p` is configured twice"),
        (
            json!({"upstreams": [upstream, {"name": "q", "url": "http://h", "policy": true}]}),
            "`p` and `q` both",
        ),
        (
            json!({"upstreams": [upstream], "routes": [{"model": "*", "upstream": "t"}]}),
            "names upstream `t`",
        ),
        (
            json!({"upstreams": [upstream], "mcp_servers": [{"name": "a/b", "command": ["x"]}]}),
            "part of a URL",
        ),
        (
            json!({"upstreams": [upstream], "mcp_servers": [{"name": "a", "command": []}]}),
            "`command` is empty",
        ),
        (
            json!({"upstreams": [upstream], "limits": {"drain_seconds": 0}}),
            "`drain_seconds` must be more than",
        ),
    ] {
        let error = check(raw.clone()).unwrap_err();
        assert!(error.contains(words), "{raw}: {error}");
    }
}

#[test]
fn keys_are_not_printed() {
    let mut config = ProxyConfig::new(vec![UpstreamConfig {
        api_key: Some("sk-secret".into()),
        ..UpstreamConfig::new("p", "http://h")
    }]);
    config.token = Some("sk-secret".into());
    assert!(!format!("{config:?}").contains("sk-secret"));
}
