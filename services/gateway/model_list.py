"""The models that one gateway serves, each with settings of its own."""

from pathlib import Path

from shared.errors import SettingsError
from shared.settings.groups import Settings
from shared.settings.load import changed

FLAG = "--more-models"


def each_model(settings: Settings) -> list[Settings]:
    """`--model` as it is set, then each of `--more-models`, by whose files all is known that is set
    for the first. SettingsError for one without a name or place, or a name that is there twice."""
    given = [each.strip() for each in settings.model.more_models.split(",") if each.strip()]
    models = [changed(settings, more_models=""), *(_another(settings, each) for each in given)]
    names = [_name(each) for each in models]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"{FLAG}: {name!r} is there twice; give each a NAME= of its own")
    return models


def _another(settings: Settings, given: str) -> Settings:
    name, equals, place = given.rpartition("=")
    if not place or (equals and not name):
        raise SettingsError(f"{FLAG}: {given!r} is not NAME=DIR_OR_HUB_ID")
    return changed(
        settings,
        model=place,
        served_model_name=name,
        more_models="",
        random_weights=False,
        tool_parser="auto",
        reasoning_parser="auto",
        thinking="auto",
        max_model_len=0,
    )


def _name(settings: Settings) -> str:
    """That clients use, as far as the settings alone tell."""
    model = settings.model
    path = Path(model.name).expanduser()
    return model.served_name or (path.resolve().name if path.is_dir() else model.name)
