from semistream.relation.row_columns import Column
def nested_column_for(type_): return None
