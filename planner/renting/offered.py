"""What is rented of whom: the catalogue's providers, or a file of the user's own prices, checked."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlplan.errors import FileError, UnknownNameError, UserError, nearest_name
from rlplan.files.decoding import check_version, decode, load_yaml
from rlplan.profiles.sheets import canonical_name, device_names, load_rentals, sheet_names
from rlplan.rentals import DATE, RENTALS_VERSION, RentalInstance, RentalSheet

# Of GPUs, all instances together, where nothing else is said.
USUAL_MOST_GPUS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """Hold so many instances of a type, of a provider."""

    sheet: RentalSheet
    instance: RentalInstance
    count: int

    @property
    def gpus(self) -> int:
        """Return the GPUs of all instances."""
        return self.instance.gpus * self.count

    @property
    def usd_per_hour(self) -> float:
        """Return the price of all instances."""
        return self.instance.usd_per_hour * self.count

    @property
    def words(self) -> str:
        """Return what is rented, for people."""
        return f"{self.count} x {self.instance.name} ({self.sheet.provider})"


def catalogue(providers: Sequence[str] = ()) -> tuple[RentalSheet, ...]:
    """Return the sheets of providers, all that are known if none is named.

    Raises:
        UnknownNameError: There is no such provider.
    """
    known = sheet_names("rentals")
    for name in providers:
        if name not in known:
            raise UnknownNameError("provider", name, known)
    return tuple(load_rentals(name) for name in providers or known)


def read_prices(path: Path) -> RentalSheet:
    """Return a user's own prices.

    Raises:
        FileError: The file is wrong: names its field and what is allowed.
    """
    data = load_yaml(path)
    check_version(data, RENTALS_VERSION, str(path), "prices")
    return checked(decode(RentalSheet, data, str(path)), str(path))


def checked(sheet: RentalSheet, file: str) -> RentalSheet:
    """Return a sheet of which all is known: GPUs by the names of their sheets, dates as dates.

    Raises:
        FileError: Names the field.
    """
    if not sheet.instances:
        raise FileError(file, "rents nothing", field="instances", allowed="at least one")
    instances: list[RentalInstance] = []
    for index, each in enumerate(sheet.instances):
        place = f"instances[{index}]"
        gpu = canonical_name("devices", each.gpu)
        if gpu not in device_names():
            near = nearest_name(gpu, device_names())
            problem, allowed = "is no GPU that has a sheet", "one of `rlplan gpu`'s"
            raise FileError(
                file, problem, field=f"{place}.gpu", value=each.gpu, allowed=allowed, nearest=near
            )
        if each.network is not None and each.network not in sheet_names("networks"):
            problem, allowed = "is no kind with a sheet", ", ".join(sheet_names("networks"))
            field = f"{place}.network"
            raise FileError(file, problem, field=field, value=each.network, allowed=allowed)
        if each.price_date is not None and not DATE.fullmatch(each.price_date):
            problem, allowed = "is no date", "a day (2026-11-09) or a month (2026-11)"
            field = f"{place}.price_date"
            raise FileError(file, problem, field=field, value=each.price_date, allowed=allowed)
        if any(other.name == each.name for other in instances):
            raise FileError(file, "is there twice", field=f"{place}.name", value=each.name)
        instances.append(replace(each, gpu=gpu))
    return replace(sheet, instances=tuple(instances))


def offered(
    sheets: Sequence[RentalSheet],
    *,
    gpus: Sequence[str] = (),
    most_gpus: int = USUAL_MOST_GPUS,
) -> tuple[Offered, ...]:
    """Return all that may be rented: each type of instance in each of its numbers.

    Those of the same GPUs follow one another, fewer before more, and of each number the best-equipped first: what is
    found of it bounds the others.

    Args:
        gpus: Names of GPUs; none names all.
        most_gpus: Of all instances together.

    Raises:
        UserError: Nothing is left.
    """
    wanted = {canonical_name("devices", name) for name in gpus}
    for name in wanted - set(device_names()):
        raise UnknownNameError("GPU", name, device_names())
    found = [
        Offered(sheet=sheet, instance=instance, count=count)
        for sheet in sheets
        for instance in sheet.instances
        if not wanted or instance.gpu in wanted
        for count in _counts(instance, most_gpus)
    ]
    if not found:
        known = sorted({each.gpu for sheet in sheets for each in sheet.instances})
        raise UserError(
            f"nothing to rent is left within {most_gpus:,} GPUs of {', '.join(sorted(wanted)) or 'any kind'}; "
            f"what is offered: {', '.join(known)}"
        )
    return tuple(sorted(found, key=_order))


def _counts(instance: RentalInstance, most_gpus: int) -> Iterator[int]:
    """Yield the numbers in which an instance is looked at; one alone where its network is not known."""
    most = most_gpus // instance.gpus
    if instance.counts is not None:
        is_linked = instance.inter_node_gbps is not None
        yield from sorted(
            {each for each in instance.counts if each <= most and (each == 1 or is_linked)}
        )
        return
    count = 1
    while count <= most:
        yield count
        if instance.inter_node_gbps is None:
            return
        count *= 2


def _order(each: Offered) -> tuple[object, ...]:
    instance = each.instance
    equipped = (instance.inter_node_gbps, instance.cores, instance.host_memory_bytes)
    return (
        instance.gpu,
        instance.gpus,
        each.count,
        tuple(-(figure or 0) for figure in equipped),
        instance.usd_per_hour,
        each.sheet.provider,
        instance.name,
    )
