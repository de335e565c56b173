"""What the SQL stores share: tables, migrations, archives."""
