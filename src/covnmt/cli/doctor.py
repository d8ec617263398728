"""The command that checks the installation: doctor."""

import json

import typer

from covnmt.cli.options import JsonOption, print_table

app = typer.Typer()


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Check the installation; print what is wrong and what to do.

    Include its output in bug reports.
    """
    from covnmt.inference.doctor import diagnose, diagnoses_json

    findings = list(diagnose())
    if as_json:
        print(json.dumps(diagnoses_json(findings), indent=2, ensure_ascii=False))
    else:
        print_table(
            ("", "check", "result", "what to do"),
            ((f.state, f.check, f.result, f.remedy) for f in findings),
        )
    if any(finding.state == "error" for finding in findings):
        raise typer.Exit(1)
