"""Running a checked configuration: threads of this process (`local`), or a supervised Spark driver (`spark`)."""
