//! Text ↔ token ids, and the whole path from messages to a prompt.

use std::path::Path;

use serde_json::Value;
use tokenizers::{AddedToken, DecoderWrapper, Tokenizer};

use super::prompt::{ControlTokens, Piece, PieceKind};
use super::source::{self, Parts};
use super::template::ChatTemplate;
use super::{ChatError, Prompt, hermes, messages};

/// A model's tokenizer and chat template.
///
/// The literals of special tokens are control tokens only where the template puts them; in messages and in
/// [`ChatTokenizer::encode_text`] they are text.
pub struct ChatTokenizer {
    /// Encodes special tokens' literals as text.
    tokenizer: Tokenizer,
    is_byte_level: bool,
    controls: ControlTokens,
    template: Option<ChatTemplate>,
    stop_token_ids: Vec<u32>,
    vocab_size: usize,
    sampling_defaults: SamplingDefaults,
    /// What the tokenizer's post-processor puts before and after a plain text (a beginning-of-text token, mostly).
    text_prefix: Vec<u32>,
    text_suffix: Vec<u32>,
    /// Set where the ids of a text depend on whether it stands at the beginning (a tokenizer that prepends a space): encoding the
    /// lead before a text, and dropping its id, gives the ids inside a prompt. Unguessable, so that no message contains it.
    lead: Option<String>,
}

/// A rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The text with its control tokens as literals.
    pub text: String,
    /// Its ids.
    pub token_ids: Vec<u32>,
}

/// How the model's makers want it sampled, where they say so (`generation_config.json`).
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Deserialize)]
#[serde(default)]
pub struct SamplingDefaults {
    /// Temperature.
    pub temperature: Option<f64>,
    /// Nucleus mass.
    pub top_p: Option<f64>,
    /// Most tokens to draw among.
    pub top_k: Option<usize>,
}

impl ChatTokenizer {
    /// Reads a Hugging Face folder (`tokenizer.json`, and if there `tokenizer_config.json`, `chat_template.jinja`,
    /// `generation_config.json`) or the metadata of a GGUF file.
    ///
    /// # Errors
    /// [`ChatError`] names the file and what is wrong with it. A missing chat template is no error until a chat is rendered.
    pub fn load(source: &Path) -> Result<Self, ChatError> {
        Self::from_parts(source::load(source)?, source)
    }

    fn from_parts(parts: Parts, source: &Path) -> Result<Self, ChatError> {
        let Parts {
            mut tokenizer,
            controls,
            templates,
            special_tokens,
            stop_token_ids,
            sampling_defaults,
            prepend,
        } = parts;
        let fail = |reason: String| ChatError::Tokenizer {
            path: source.to_owned(),
            reason,
        };
        let vocab_size = tokenizer.get_vocab_size(true);
        tokenizer.set_encode_special_tokens(true);
        let (mut text_prefix, text_suffix) = post_processing(&tokenizer).map_err(|error| fail(error.to_string()))?;
        if text_prefix.is_empty() {
            text_prefix = prepend;
        }
        let lead = format!("\u{F0000}{}\u{F0000}", uuid::Uuid::now_v7().simple());
        let lead = is_position_dependent(&tokenizer, &lead)
            .map_err(|error| fail(error.to_string()))?
            .then_some(lead);
        if let Some(lead) = &lead {
            add_lead(&mut tokenizer, lead).map_err(|error| fail(error.to_string()))?;
        }
        let template = match templates.is_empty() {
            true => None,
            false => Some(ChatTemplate::compile(&templates, special_tokens)?),
        };
        Ok(Self {
            is_byte_level: matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_))),
            tokenizer,
            controls: ControlTokens::new(controls),
            template,
            stop_token_ids,
            vocab_size,
            sampling_defaults,
            text_prefix,
            text_suffix,
            lead,
        })
    }

    /// The ids of `text`, in which nothing is a control token. A tokenizer that refuses the text (none that this crate reads does)
    /// gives no ids and an error in the log.
    pub fn encode_text(&self, text: &str) -> Vec<u32> {
        self.encode_segment(text, true).unwrap_or_else(|error| {
            tracing::error!(%error, "text not tokenised");
            Vec::new()
        })
    }

    /// The ids of a raw prompt (`/v1/completions`), in which special tokens' literals are control tokens.
    /// `add_special_tokens` adds what the model's tokenizer puts around a text, such as a beginning-of-text token.
    ///
    /// # Errors
    /// [`ChatError::Encode`] where the tokenizer refuses the text.
    pub fn encode_raw(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, ChatError> {
        let pieces = self.controls.split(text);
        let (prefix, suffix) = match add_special_tokens {
            true => (self.text_prefix.as_slice(), self.text_suffix.as_slice()),
            false => Default::default(),
        };
        let mut token_ids = prefix.to_vec();
        self.encode_pieces(&pieces, None, true, &mut token_ids)?;
        token_ids.extend_from_slice(suffix);
        Ok(token_ids)
    }

    /// The text of `token_ids`; bytes that form no character become U+FFFD, ids outside the vocabulary nothing.
    pub fn decode(&self, token_ids: &[u32], skip_special: bool) -> String {
        self.tokenizer.decode(token_ids, skip_special).unwrap_or_else(|error| {
            tracing::error!(%error, "tokens not decoded");
            String::new()
        })
    }

    /// The token's own text, special or not; half a character is U+FFFD.
    pub fn token_text(&self, token_id: u32) -> String {
        self.decode(&[token_id], false)
    }

    /// The bytes that the token stands for, where the vocabulary is one of bytes.
    pub(super) fn token_bytes(&self, token_id: u32) -> Option<Vec<u8>> {
        if !self.is_byte_level {
            return None;
        }
        // An id beyond the vocabulary has no text.
        let token = self.tokenizer.id_to_token(token_id).unwrap_or_default();
        // A token added beside the vocabulary is written as it is.
        let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
        Some(bytes.unwrap_or_else(|| token.into_bytes()))
    }

    /// Whether the token is a control token.
    pub fn is_special(&self, token_id: u32) -> bool {
        self.controls.contains(token_id)
    }

    /// Tokens that end the assistant's turn, the tokenizer's own end token first.
    pub fn stop_token_ids(&self) -> &[u32] {
        &self.stop_token_ids
    }

    /// Number of ids that the tokenizer knows; a model's head can be wider.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// How the model's makers want it sampled.
    pub fn sampling_defaults(&self) -> SamplingDefaults {
        self.sampling_defaults
    }

    /// The prompt of an OpenAI request: `messages` and `tools` by the model's template (in the Hermes form where that knows no
    /// tools), with the opening of the assistant's turn if `add_generation_prompt`.
    ///
    /// # Errors
    /// [`ChatError`] for messages that can't be used, for a template that refuses them, or a model without one.
    pub fn render(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        add_generation_prompt: bool,
    ) -> Result<Rendered, ChatError> {
        let prompt = self.prompt(messages, tools, add_generation_prompt)?;
        Ok(Rendered {
            text: prompt.text(),
            token_ids: self.encode_prompt(&prompt)?,
        })
    }

    /// As [`ChatTokenizer::render`], before encoding.
    ///
    /// # Errors
    /// See there.
    pub fn prompt(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        add_generation_prompt: bool,
    ) -> Result<Prompt, ChatError> {
        self.prompt_with_mask(
            messages,
            tools,
            add_generation_prompt,
            self.choose_mask(messages, tools)?,
        )
    }

    /// A mask character that these messages and tools leave free.
    pub(super) fn choose_mask(&self, messages: &[Value], tools: Option<&[Value]>) -> Result<char, ChatError> {
        let values = messages.iter().chain(tools.unwrap_or_default());
        self.controls
            .choose_mask(values)
            .ok_or_else(|| ChatError::Encode("the messages use every private-use character".into()))
    }

    pub(super) fn prompt_with_mask(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        add_generation_prompt: bool,
        mask: char,
    ) -> Result<Prompt, ChatError> {
        let template = self.template.as_ref().ok_or(ChatError::NoTemplate)?;
        let tools = tools.filter(|tools| !tools.is_empty());
        messages::check_tools(tools.unwrap_or_default())?;
        let messages = messages::normalise(messages)?;
        let mut messages: Vec<Value> = messages
            .iter()
            .map(|message| self.controls.mask(message, mask))
            .collect();
        let tools: Option<Vec<Value>> =
            tools.map(|tools| tools.iter().map(|tool| self.controls.mask(tool, mask)).collect());
        let text = if template.mentions_tools() {
            messages::parse_arguments(&mut messages);
            template.render(&messages, tools.as_deref(), add_generation_prompt)?
        } else {
            let plain = hermes::to_plain_messages(&messages, tools.as_deref());
            template.render(&plain, None, add_generation_prompt)?
        };
        Ok(Prompt::new(text, mask))
    }

    /// The ids of a rendered prompt: template text and message text are encoded together between control tokens, so that the ids are
    /// those of `transformers`; look-alikes of control tokens are text.
    ///
    /// # Errors
    /// [`ChatError::Encode`] where the tokenizer refuses the text.
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<Vec<u32>, ChatError> {
        let mut token_ids = Vec::new();
        self.encode_pieces(&self.split(prompt.masked()), Some(prompt), true, &mut token_ids)?;
        Ok(token_ids)
    }

    pub(super) fn split<'a>(&self, masked: &'a str) -> Vec<Piece<'a>> {
        self.controls.split(masked)
    }

    /// Appends the ids of `pieces`. `masks` is the prompt they are of, if it has masks to take out; `at_beginning` says that the
    /// first piece begins the sequence.
    pub(super) fn encode_pieces(
        &self,
        pieces: &[Piece<'_>],
        masks: Option<&Prompt>,
        at_beginning: bool,
        token_ids: &mut Vec<u32>,
    ) -> Result<(), ChatError> {
        for (index, piece) in pieces.iter().enumerate() {
            let first = at_beginning && index == 0;
            match (piece.kind, masks) {
                (PieceKind::Control(token_id), _) => token_ids.push(token_id),
                (PieceKind::Text(text), Some(prompt)) if text.contains(prompt.mask()) => {
                    token_ids.extend(self.encode_segment(&prompt.unmask(text), first)?);
                }
                (PieceKind::Text(text), _) => token_ids.extend(self.encode_segment(text, first)?),
            }
        }
        Ok(())
    }

    fn encode_segment(&self, text: &str, at_beginning: bool) -> Result<Vec<u32>, ChatError> {
        let fail = |error: tokenizers::Error| ChatError::Encode(error.to_string());
        match &self.lead {
            Some(lead) if !at_beginning => {
                let encoding = self
                    .tokenizer
                    .encode_fast(format!("{lead}{text}"), false)
                    .map_err(fail)?;
                Ok(encoding.get_ids().get(1..).unwrap_or_default().to_vec())
            }
            _ => Ok(self
                .tokenizer
                .encode_fast(text, false)
                .map_err(fail)?
                .get_ids()
                .to_vec()),
        }
    }
}

/// Ids that the post-processor puts before and after a text.
fn post_processing(tokenizer: &Tokenizer) -> tokenizers::Result<(Vec<u32>, Vec<u32>)> {
    let plain = tokenizer.encode_fast("a", false)?.get_ids().to_vec();
    let processed = tokenizer.encode_fast("a", true)?.get_ids().to_vec();
    let start = processed
        .windows(plain.len().max(1))
        .position(|window| window == plain)
        .unwrap_or(0);
    let end = (start + plain.len()).min(processed.len());
    Ok((processed[..start].to_vec(), processed[end..].to_vec()))
}

fn is_position_dependent(tokenizer: &Tokenizer, lead: &str) -> tokenizers::Result<bool> {
    let mut probe = tokenizer.clone();
    add_lead(&mut probe, lead)?;
    let alone = probe.encode_fast("a b", false)?.get_ids().to_vec();
    let inside = probe.encode_fast(format!("{lead}a b"), false)?.get_ids().to_vec();
    Ok(inside.get(1..) != Some(alone.as_slice()))
}

fn add_lead(tokenizer: &mut Tokenizer, lead: &str) -> tokenizers::Result<()> {
    tokenizer
        .add_tokens([AddedToken::from(lead, false).normalized(false)])
        .map(drop)
}

/// The byte that a character of a byte-level token stands for: printable Latin-1 stands for itself, the other bytes, in order, for
/// the characters from U+0100 on.
fn byte_of(character: char) -> Option<u8> {
    match u32::from(character) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}
