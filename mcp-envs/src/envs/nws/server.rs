//! The MCP server `nws`: six tools over the weather service.
//!
//! - [`arguments`]: checked inputs; what is wrong with them goes back to the model as an error result
//! - [`output`]: the structured result of each tool
//! - [`text`]: the same as text, short and one fact a line, because a small model has to read it
//!
//! Names, descriptions and schemas are short on purpose: an agent puts them into every prompt.

use std::sync::Arc;

use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::tool::schema_for_output;
use rmcp::model::{CallToolResult, ContentBlock, Implementation, JsonObject, ServerCapabilities, ServerConfig};
use rmcp::{ServerHandler, tool, tool_handler, tool_router};
use serde::Serialize;
use serde_json::{Value, json};

use super::client::{AlertArea, Coordinates, NwsClient, Observation, StationInfo, WeatherError};
use arguments::{ArgumentError, Arguments, Range};
use output::{AlertsOutput, ForecastOutput, HourlyOutput, ObservationOutput, PointOutput, StationsOutput};

pub mod arguments;
pub mod output;
pub mod text;

/// Days of a forecast; four make a text that a small model can read.
const DAYS: Range = Range {
    low: 1,
    high: 7,
    default: 4,
};
/// Hours of an hourly forecast.
const HOURS: Range = Range {
    low: 1,
    high: 48,
    default: 12,
};
/// Stations around a point.
const STATIONS: Range = Range {
    low: 1,
    high: 20,
    default: 3,
};
/// Stations that are asked for a point's current weather before the nearest one's gaps are accepted.
const STATIONS_TRIED: usize = 3;

/// The server; one a session.
#[derive(Debug, Clone)]
pub struct NwsServer {
    client: NwsClient,
    tool_router: ToolRouter<Self>,
}

/// Why a tool gave no answer, for the model.
#[derive(Debug, thiserror::Error)]
enum ToolError {
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    #[error("{}", .0.explain())]
    Weather(#[from] WeatherError),
}

/// Text and structure of an answer.
struct Answer {
    text: String,
    structured: Value,
}

impl Answer {
    fn new(text: String, structured: &impl Serialize) -> Self {
        // The outputs are plain structs of numbers and strings, so writing them to JSON cannot fail.
        Self {
            text: text::bounded(text),
            structured: serde_json::to_value(structured).unwrap_or_default(),
        }
    }
}

#[tool_router]
impl NwsServer {
    /// A server that asks this client.
    pub fn new(client: NwsClient) -> Self {
        Self {
            client,
            tool_router: Self::tool_router(),
        }
    }

    /// Forecast by day and night.
    #[tool(
        description = "Forecast of one period or all",
        input_schema = point_schema(Some("period"), Some(("days", DAYS))),
        output_schema = schema_for_output::<ForecastOutput>(),
        annotations(read_only_hint = true, open_world_hint = true)
    )]
    async fn get_forecast(&self, arguments: JsonObject) -> CallToolResult {
        reply(self.forecast(arguments).await)
    }

    /// Forecast by hour.
    #[tool(
        description = "Forecast of one hour or all",
        input_schema = point_schema(Some("hour"), Some(("hours", HOURS))),
        output_schema = schema_for_output::<HourlyOutput>(),
        annotations(read_only_hint = true, open_world_hint = true)
    )]
    async fn get_hourly_forecast(&self, arguments: JsonObject) -> CallToolResult {
        reply(self.hourly_forecast(arguments).await)
    }

    /// Latest report of a station, or of the station nearest to a point.
    #[tool(
        description = "Latest observation at a station or point",
        input_schema = current_weather_schema(),
        output_schema = schema_for_output::<ObservationOutput>(),
        annotations(read_only_hint = true, open_world_hint = true)
    )]
    async fn get_current_weather(&self, arguments: JsonObject) -> CallToolResult {
        reply(self.current_weather(arguments).await)
    }

    /// Active alerts of a state or a point.
    #[tool(
        description = "Active alerts of a state or point",
        input_schema = alerts_schema(),
        output_schema = schema_for_output::<AlertsOutput>(),
        annotations(read_only_hint = true, open_world_hint = true)
    )]
    async fn get_alerts(&self, arguments: JsonObject) -> CallToolResult {
        reply(self.alerts(arguments).await)
    }

    /// Stations near a point, nearest first.
    #[tool(
        description = "Stations near a point",
        input_schema = point_schema(None, Some(("limit", STATIONS))),
        output_schema = schema_for_output::<StationsOutput>(),
        annotations(read_only_hint = true, open_world_hint = true)
    )]
    async fn find_stations(&self, arguments: JsonObject) -> CallToolResult {
        reply(self.stations(arguments).await)
    }

    /// Forecast office and grid cell of a point.
    #[tool(
        description = "Office and grid of a point",
        input_schema = point_schema(None, None),
        output_schema = schema_for_output::<PointOutput>(),
        annotations(read_only_hint = true, open_world_hint = true)
    )]
    async fn get_point(&self, arguments: JsonObject) -> CallToolResult {
        reply(self.point(arguments).await)
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for NwsServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("nws", env!("CARGO_PKG_VERSION")))
            .with_instructions("Weather of the United States from the National Weather Service.")
    }
}

impl NwsServer {
    /// Calls a tool in this process, without a session; `None` for a tool that does not exist.
    pub async fn call(&self, tool: &str, arguments: JsonObject) -> Option<CallToolResult> {
        Some(match tool {
            "get_forecast" => self.get_forecast(arguments).await,
            "get_hourly_forecast" => self.get_hourly_forecast(arguments).await,
            "get_current_weather" => self.get_current_weather(arguments).await,
            "get_alerts" => self.get_alerts(arguments).await,
            "find_stations" => self.find_stations(arguments).await,
            "get_point" => self.get_point(arguments).await,
            _ => return None,
        })
    }

    /// The tools as OpenAI's chat completions take them, which is what an agent puts into its prompt.
    pub fn openai_tools() -> Vec<Value> {
        let tools = Self::tool_router().list_all().into_iter();
        let function = |tool: rmcp::model::Tool| {
            let description = tool.description.unwrap_or_default();
            json!({ "type": "function", "function": {
                "name": tool.name, "description": description, "parameters": tool.input_schema.as_ref(),
            } })
        };
        tools.map(function).collect()
    }

    async fn forecast(&self, arguments: JsonObject) -> Result<Answer, ToolError> {
        let arguments = Arguments::new(arguments, &["latitude", "longitude", "period", "days"])?;
        let coordinates = arguments.coordinates()?;
        let days = arguments.integer("days", DAYS)?;
        let mut periods = self.client.forecast(coordinates).await?;
        // A day is what it says in the forecast: its day and its night; the first may have only a night left.
        let first_is_night = periods.first().is_some_and(|period| !period.is_daytime);
        periods.truncate(2 * days - usize::from(first_is_night));
        let output = ForecastOutput::new(&arguments.named("period", periods, |period| &period.name)?);
        Ok(Answer::new(text::forecast(&output), &output))
    }

    async fn hourly_forecast(&self, arguments: JsonObject) -> Result<Answer, ToolError> {
        let arguments = Arguments::new(arguments, &["latitude", "longitude", "hour", "hours"])?;
        let coordinates = arguments.coordinates()?;
        let hours = arguments.integer("hours", HOURS)?;
        let mut periods = self.client.hourly_forecast(coordinates).await?;
        periods.truncate(hours);
        let HourlyOutput { hours } = HourlyOutput::new(&periods);
        let output = HourlyOutput {
            hours: arguments.named("hour", hours, |hour| &hour.name)?,
        };
        Ok(Answer::new(text::hourly_forecast(&output), &output))
    }

    async fn current_weather(&self, arguments: JsonObject) -> Result<Answer, ToolError> {
        let arguments = Arguments::new(arguments, &["latitude", "longitude", "station"])?;
        let (id, name, observation) = match arguments.station()? {
            Some(station) => (station.clone(), None, self.client.observation(&station).await?),
            None => self.nearest_observation(arguments.coordinates()?).await?,
        };
        let output = ObservationOutput::new(id, name, &observation);
        Ok(Answer::new(text::observation(&output), &output))
    }

    /// The report of the nearest station that has a temperature; the nearest one's where none has.
    async fn nearest_observation(
        &self,
        coordinates: Coordinates,
    ) -> Result<(String, Option<String>, Observation), ToolError> {
        let stations = self.client.stations(coordinates).await?;
        let mut first: Option<(&StationInfo, Observation)> = None;
        for station in stations.iter().take(STATIONS_TRIED) {
            match self.client.observation(&station.id).await {
                Ok(observation) if observation.fahrenheit().is_some() => {
                    return Ok((station.id.clone(), Some(station.name.clone()), observation));
                }
                Ok(observation) => first = first.or(Some((station, observation))),
                // A station can be listed and have no report.
                Err(WeatherError::Problem { status: 404, .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let (station, observation) = first.ok_or(WeatherError::Incomplete {
            what: "current observation",
        })?;
        Ok((station.id.clone(), Some(station.name.clone()), observation))
    }

    async fn alerts(&self, arguments: JsonObject) -> Result<Answer, ToolError> {
        let arguments = Arguments::new(arguments, &["state", "latitude", "longitude", "severity"])?;
        let severity = arguments.severity()?;
        let (area, label) = match arguments.state()? {
            Some(state) => (AlertArea::Area(state.clone()), state),
            None => {
                let coordinates = arguments.coordinates().map_err(|error| error.or_state())?;
                // The service answers a point abroad with an empty list; asking for the point itself finds it out.
                self.client.point(coordinates).await?;
                (AlertArea::Point(coordinates), coordinates.to_string())
            }
        };
        let alerts = self.client.alerts(&area, severity).await?;
        let output = AlertsOutput::new(label, severity, alerts);
        Ok(Answer::new(text::alerts(&output), &output))
    }

    async fn stations(&self, arguments: JsonObject) -> Result<Answer, ToolError> {
        let arguments = Arguments::new(arguments, &["latitude", "longitude", "limit"])?;
        let coordinates = arguments.coordinates()?;
        let limit = arguments.integer("limit", STATIONS)?;
        let mut stations = self.client.stations(coordinates).await?;
        stations.truncate(limit);
        let output = StationsOutput::new(coordinates, &stations);
        Ok(Answer::new(text::stations(&output), &output))
    }

    async fn point(&self, arguments: JsonObject) -> Result<Answer, ToolError> {
        let arguments = Arguments::new(arguments, &["latitude", "longitude"])?;
        let point = self.client.point(arguments.coordinates()?).await?;
        let output = PointOutput::new(&point).ok_or(WeatherError::Incomplete { what: "forecast grid" })?;
        Ok(Answer::new(text::point(&output), &output))
    }
}

fn reply(answer: Result<Answer, ToolError>) -> CallToolResult {
    match answer {
        Ok(answer) => {
            let mut result = CallToolResult::success(vec![ContentBlock::text(answer.text)]);
            result.structured_content = Some(answer.structured);
            result
        }
        Err(error) => {
            tracing::debug!(error = &error as &dyn std::error::Error, "a tool call failed");
            CallToolResult::error(vec![ContentBlock::text(text::bounded(error.to_string()))])
        }
    }
}

/// `latitude`, `longitude`, and perhaps a name that selects and a bounded number.
fn point_schema(name: Option<&str>, number: Option<(&str, Range)>) -> Arc<JsonObject> {
    let mut properties = json!({ "latitude": { "type": "number" }, "longitude": { "type": "number" } });
    let mut required = vec!["latitude", "longitude"];
    if let Some(name) = name {
        properties[name] = json!({ "type": "string" });
        required.push(name);
    }
    if let Some((name, range)) = number {
        properties[name] = json!({ "type": "integer", "minimum": range.low, "maximum": range.high });
    }
    schema(properties, &required)
}

fn current_weather_schema() -> Arc<JsonObject> {
    let properties = json!({
        "latitude": { "type": "number" },
        "longitude": { "type": "number" },
        "station": { "type": "string" },
    });
    schema(properties, &[])
}

fn alerts_schema() -> Arc<JsonObject> {
    let properties = json!({
        "state": { "type": "string" },
        "latitude": { "type": "number" },
        "longitude": { "type": "number" },
        "severity": { "type": "string" },
    });
    schema(properties, &[])
}

fn schema(properties: Value, required: &[&str]) -> Arc<JsonObject> {
    let mut schema = JsonObject::new();
    schema.insert("type".to_owned(), json!("object"));
    schema.insert("properties".to_owned(), properties);
    if !required.is_empty() {
        schema.insert("required".to_owned(), json!(required));
    }
    Arc::new(schema)
}

#[cfg(test)]
mod tests;
