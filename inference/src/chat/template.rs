//! The model's own chat template, rendered as `transformers` renders it: `trim_blocks`, `lstrip_blocks`, loop controls,
//! Python's string and dict methods, `raise_exception`, `strftime_now`, and `tojson` without HTML escapes.

use std::collections::BTreeMap;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value as TemplateValue, ValueKind};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::Value;

use super::ChatError;
use super::json_text::{python_json, python_json_indented};

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// A compiled chat template; some models bring a second one for requests with tools.
pub struct ChatTemplate {
    environment: Environment<'static>,
    has_tool_use: bool,
    mentions_tools: bool,
    special_tokens: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// Compiles the named `sources` (`default`, perhaps `tool_use`). `special_tokens` become variables of the template
    /// (`bos_token`, `eos_token`, …).
    ///
    /// # Errors
    /// [`ChatError::NoTemplate`] without a `default`, [`ChatError::Template`] on a syntax error.
    pub fn compile(
        sources: &BTreeMap<String, String>,
        special_tokens: BTreeMap<String, String>,
    ) -> Result<Self, ChatError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(template_error)?;
        environment.set_syntax(syntax);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        for name in [DEFAULT, TOOL_USE] {
            if let Some(source) = sources.get(name) {
                environment
                    .add_template_owned(name, without_generation_tags(source))
                    .map_err(template_error)?;
            }
        }
        let template = environment.get_template(DEFAULT).map_err(|_| ChatError::NoTemplate)?;
        let mentions_tools = template.undeclared_variables(false).contains("tools");
        let has_tool_use = sources.contains_key(TOOL_USE);
        Ok(Self {
            environment,
            has_tool_use,
            mentions_tools: mentions_tools || has_tool_use,
            special_tokens,
        })
    }

    /// Whether the template renders tool definitions by itself.
    pub fn mentions_tools(&self) -> bool {
        self.mentions_tools
    }

    /// The text of `messages`, control tokens included.
    ///
    /// # Errors
    /// [`ChatError::Template`] with the template's own words, such as those of its `raise_exception`.
    pub fn render(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let name = if tools.is_some() && self.has_tool_use {
            TOOL_USE
        } else {
            DEFAULT
        };
        let template = self.environment.get_template(name).map_err(template_error)?;
        let mut variables: Vec<(String, TemplateValue)> = self
            .special_tokens
            .iter()
            .map(|(key, text)| (key.clone(), TemplateValue::from(text)))
            .collect();
        variables.push(("messages".into(), messages.iter().map(to_template_value).collect()));
        let tools = tools.map(|tools| tools.iter().map(to_template_value).collect::<TemplateValue>());
        variables.push(("tools".into(), tools.unwrap_or_else(|| TemplateValue::from(()))));
        variables.push(("documents".into(), TemplateValue::from(())));
        variables.push((
            "add_generation_prompt".into(),
            TemplateValue::from(add_generation_prompt),
        ));
        template
            .render(TemplateValue::from_pairs(variables))
            .map_err(template_error)
    }
}

fn template_error(error: Error) -> ChatError {
    // A `raise_exception` is meant for the caller: its words alone, without the position in the template.
    let reason = match (error.kind(), error.detail()) {
        (ErrorKind::InvalidOperation, Some(detail)) => detail.to_owned(),
        _ => error.to_string(),
    };
    ChatError::Template(reason)
}

/// `{% generation %}` marks assistant text for trainers that mask by template; for rendering it is a block without effect.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let tag = &rest[start..start + length + 2];
        out.push_str(&rest[..start]);
        match tag.trim_matches(['{', '}', '%', '-', '+', ' ', '\n', '\t']) {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = &rest[start + length + 2..];
    }
    out.push_str(rest);
    out
}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime_now(format: String) -> Result<String, Error> {
    let now = jiff::ZonedDateTime::now();
    jiff::fmt::strtime::format(&format, &now).map_err(|error| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now(`{format}`): {error}"),
        )
    })
}

fn to_json(value: &TemplateValue, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Templates pass these for Python's sake; `ensure_ascii=False` is what we do anyway.
    let _: Option<bool> = options.get("ensure_ascii")?;
    let _: Option<TemplateValue> = options.get("separators")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let mut json = to_json_value(value)?;
    if sort_keys == Some(true) {
        json.sort_all_objects();
    }
    Ok(match indent {
        Some(width) => python_json_indented(&json, width),
        None => python_json(&json),
    })
}

fn to_template_value(value: &Value) -> TemplateValue {
    match value {
        Value::Null => TemplateValue::from(()),
        Value::Bool(flag) => TemplateValue::from(*flag),
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(integer), ..) => TemplateValue::from(integer),
            (_, Some(integer), _) => TemplateValue::from(integer),
            (.., float) => TemplateValue::from(float.unwrap_or(f64::NAN)),
        },
        Value::String(text) => TemplateValue::from(text),
        Value::Array(items) => items.iter().map(to_template_value).collect(),
        Value::Object(fields) => {
            TemplateValue::from_pairs(fields.iter().map(|(key, item)| (key.clone(), to_template_value(item))))
        }
    }
}

fn to_json_value(value: &TemplateValue) -> Result<Value, Error> {
    let unserialisable = || {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("tojson can't write a {}", value.kind()),
        )
    };
    Ok(match value.kind() {
        ValueKind::None => Value::Null,
        ValueKind::Bool => Value::Bool(value.is_true()),
        ValueKind::Number if value.is_integer() => match value.as_i64() {
            Some(integer) => Value::from(integer),
            None => Value::from(u64::try_from(value.clone()).map_err(|_| unserialisable())?),
        },
        ValueKind::Number => Value::from(f64::try_from(value.clone())?),
        ValueKind::String => Value::from(value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => Value::Array(
            value
                .try_iter()?
                .map(|item| to_json_value(&item))
                .collect::<Result<_, _>>()?,
        ),
        ValueKind::Map => {
            let mut fields = serde_json::Map::new();
            for key in value.try_iter()? {
                fields.insert(key.to_string(), to_json_value(&value.get_item(&key)?)?);
            }
            Value::Object(fields)
        }
        _ => return Err(unserialisable()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(source: &str, messages: &[Value], tools: Option<&[Value]>) -> Result<String, ChatError> {
        let sources = BTreeMap::from([(DEFAULT.to_owned(), source.to_owned())]);
        ChatTemplate::compile(&sources, BTreeMap::from([("bos_token".into(), "<s>".into())]))?
            .render(messages, tools, true)
    }

    #[test]
    fn json_is_pythons() {
        let tools = [json!({"name": "f", "v": [1, 1.0, null, "<&>é"]})];
        assert_eq!(
            render("{{ tools[0] | tojson }}", &[], Some(&tools)).unwrap(),
            r#"{"name": "f", "v": [1, 1.0, null, "<&>é"]}"#
        );
        assert_eq!(
            render("{{ {'b': 1, 'a': 2} | tojson(indent=2, sort_keys=true) }}", &[], None).unwrap(),
            "{\n  \"a\": 2,\n  \"b\": 1\n}"
        );
    }

    #[test]
    fn blocks_are_trimmed_and_python_methods_work() {
        let source = "{{ bos_token }}\n{% for m in messages %}\n  {% generation %}\n{{ m.content.strip().split('|')[-1] }}\n  {% endgeneration %}\n{% endfor %}\n{% if tools is none %}no tools{% endif %}\n";
        let text = render(source, &[json!({"role": "user", "content": " a|b "})], None).unwrap();
        assert_eq!(text, "<s>\nb\nno tools");
    }

    #[test]
    fn exceptions_reach_the_caller_in_the_templates_words() {
        let error = render("{{ raise_exception('roles must alternate') }}", &[], None)
            .err()
            .unwrap();
        assert_eq!(
            error.to_string(),
            "the chat template can't render these messages: roles must alternate"
        );
    }

    #[test]
    fn only_the_variable_counts_as_mention_of_tools() {
        let compile = |source: &str| {
            let sources = BTreeMap::from([(DEFAULT.to_owned(), source.to_owned())]);
            ChatTemplate::compile(&sources, BTreeMap::new()).unwrap()
        };
        assert!(!compile("{# tools #}{{ messages[0].tools }}").mentions_tools());
        assert!(compile("{% if tools %}{{ tools | tojson }}{% endif %}").mentions_tools());
    }
}
